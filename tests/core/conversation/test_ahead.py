"""Bodies that come before the reply to the headers, and pass with their own replies (STREAMED)."""

from __future__ import annotations

import json

import pytest

from extproc.core.conversation.events import BodyMode, Event, Kind, Modes, Proceed, Replies
from extproc.core.conversation.head import HEAD_LIMIT
from extproc.core.schema import ModelSpec
from tests.core.builders import model_spec
from tests.core.conversation.test_duplex import LLAMA, QWEN, Peer, asking, refusal

AHEAD = Modes(BodyMode.AHEAD)
SERVED = model_spec("llama", aliases=["l"]).model_copy(update={"served_name": "meta/llama"})


def peer(*specs: ModelSpec) -> Peer:
    return Peer(*specs, modes=AHEAD)


def kinds(replies: Replies) -> list[Kind]:
    assert all(isinstance(reply, Proceed) for reply in replies)
    return [reply.kind for reply in replies if isinstance(reply, Proceed)]


def bodies(replies: Replies) -> list[bytes | None]:
    return [a.body for a in replies if isinstance(a, Proceed) and a.kind is Kind.REQUEST_BODY]


class TestHeaders:
    def test_get_the_decision_after_the_body(self) -> None:
        one = peer(LLAMA, QWEN)
        assert one.headers() == ()
        headers, body = one.body(asking(), end=True)
        assert isinstance(headers, Proceed)
        assert headers.kind is Kind.REQUEST_HEADERS
        assert headers.decision is not None
        assert headers.target == headers.decision.address
        assert headers.reroute
        assert body == Proceed(Kind.REQUEST_BODY)
        assert one.in_flight == 1

    def test_get_the_decision_at_once_without_a_body(self) -> None:
        assert refusal(peer().headers(end=True)) == (400, "invalid_request")

    def test_get_the_decision_once_the_body_is_sufficient(self) -> None:
        one = peer()
        one.headers()
        body = asking(content="tell me of the sea " * 100)
        assert one.body(body[:20]) == ()
        assert one.body(body[20:30]) == ()
        replies = one.body(body[30:900])
        assert kinds(replies) == [Kind.REQUEST_HEADERS, *[Kind.REQUEST_BODY] * 3]
        assert kinds(one.body(body[900:], end=True)) == [Kind.REQUEST_BODY]
        assert one.in_flight == 1


class TestBodyParts:
    def test_get_a_reply_each(self) -> None:
        one = peer()
        one.headers()
        body = asking()
        assert one.body(body[:10]) == one.body(body[10:20]) == ()
        replies = one.body(body[20:], end=True)
        assert kinds(replies) == [Kind.REQUEST_HEADERS, *[Kind.REQUEST_BODY] * 3]
        assert bodies(replies) == [None] * 3

    def test_can_end_with_an_empty_one(self) -> None:
        one = peer()
        one.headers()
        assert one.body(asking()[:10]) == ()
        assert one.body(asking()[10:-1]) == ()
        assert one.body(asking()[-1:] + b" " * 99) == ()
        replies = one.body(b"", end=True)
        assert kinds(replies) == [Kind.REQUEST_HEADERS, *[Kind.REQUEST_BODY] * 4]

    def test_can_be_missing_before_trailers(self) -> None:
        one = peer()
        one.headers()
        assert refusal(one.trailers()) == (400, "invalid_request")

    @pytest.mark.parametrize("cuts", [[], [5], [5, 20]])
    def test_are_renamed_as_a_whole_in_the_first_part(self, cuts: list[int]) -> None:
        one = peer(SERVED)
        one.headers()
        body = asking("l")
        replies: Replies = ()
        for start, end in zip([0, *cuts], [*cuts, len(body)], strict=True):
            replies = one.body(body[start:end], end=end == len(body))
        shown = bodies(replies)
        assert len(shown) == len(cuts) + 1
        assert json.loads(shown[0] or b"") == {**json.loads(body), "model": "meta/llama"}
        assert shown[1:] == [b""] * len(cuts)


class TestWholeBodyWithoutAnEnd:
    """Envoy sends trailers only after the replies to the body, so the sidecar cannot wait."""

    def replaced(self, replies: Replies) -> bytes:
        (reply,) = replies
        assert isinstance(reply, Proceed)
        assert reply.kind is Kind.REQUEST_HEADERS
        assert reply.decision is not None
        assert reply.decision.fallback, "Envoy can retry it"
        assert reply.reroute
        assert reply.whole_body is not None
        return reply.whole_body

    @pytest.mark.parametrize("content", ["hello", "x" * 2 * HEAD_LIMIT])
    def test_comes_back_in_the_reply_to_the_headers(self, content: str) -> None:
        one = peer()
        body = asking(content=content)
        one.headers(content_length=str(len(body)))
        assert self.replaced(one.body(body)) == body
        assert one.in_flight == 1
        assert one.body(b"", end=True) == one.trailers() == (), "Envoy expects no further replies"
        assert one.conversation.receive(Event(Kind.RESPONSE_HEADERS)) == (
            Proceed(Kind.RESPONSE_HEADERS),
        )

    def test_ends_with_its_json_object_if_the_length_is_unknown(self) -> None:
        one = peer()
        one.headers()
        body = asking() + b"\r\n"
        assert one.body(body[:20]) == ()
        assert self.replaced(one.body(body[20:])) == body

    def test_ends_where_its_length_says(self) -> None:
        one = peer()
        body = asking()
        one.headers(content_length=str(len(body) + 1))
        assert one.body(body[:-1]) == one.body(body[-1:]) == ()
        assert self.replaced(one.body(b"\n")) == body + b"\n"

    def test_has_the_served_name(self) -> None:
        one = peer(SERVED)
        one.headers()
        body = self.replaced(one.body(asking("l")))
        assert json.loads(body) == {**json.loads(asking("l")), "model": "meta/llama"}

    def test_can_be_a_form(self) -> None:
        body = b'--XX\r\nContent-Disposition: form-data; name="model"\r\n\r\nllama\r\n--XX--\r\n'
        one = peer()
        one.headers(
            "/v1/audio/transcriptions",
            content_type="multipart/form-data; boundary=XX",
            content_length=str(len(body)),
        )
        assert self.replaced(one.body(body)) == body

    def test_is_refused_if_it_is_no_json(self) -> None:
        one = peer()
        one.headers(content_length="9")
        assert refusal(one.body(b'{"model":')) == (400, "invalid_request")

    def test_is_refused_if_it_is_empty(self) -> None:
        assert refusal(peer().headers(content_length="0")) == (400, "invalid_request")

    def test_that_never_seems_to_end_is_checked_a_few_times(self) -> None:
        one = peer()
        one.headers()
        assert one.body(b'{"model": "llama", "cache_salt') == ()
        for _ in range(2_000):
            assert one.body(b"}" * 30) == ()
        assert one.conversation.head is not None
        assert not one.conversation.head.is_whole()

    def test_passes_in_parts_at_gateways_that_do_not_name_their_modes(self) -> None:
        one = Peer()
        first = Event(Kind.REQUEST_HEADERS, headers={"content-type": b"application/json"})
        assert one.conversation.receive(first) == ()
        body = asking(content="x" * 99)
        assert one.body(body[:20]) == ()
        replies = one.body(body[20:])
        assert kinds(replies) == [Kind.REQUEST_HEADERS, *[Kind.REQUEST_BODY] * 2]
        assert kinds(one.trailers()) == [Kind.REQUEST_TRAILERS]


def test_refusal_is_the_only_reply() -> None:
    one = peer()
    one.headers()
    assert one.body(b'{"mod') == ()
    assert refusal(one.body(b'el": "gpt"}', end=True)) == (404, "model_not_found")
    assert one.body(b"", end=True) == ()
    assert one.in_flight == 0


def test_stream_that_ends_before_its_body_holds_no_lease() -> None:
    one = peer()
    one.headers()
    assert one.body(asking()[:10]) == ()
    one.conversation.close()
    assert one.in_flight == 0
    assert one.conversation.verdict is None
