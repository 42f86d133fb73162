"""Bodies that come before the reply to the headers, and pass with their own replies (STREAMED)."""

from __future__ import annotations

import json

import pytest

from extproc.core.conversation.events import BodyMode, Kind, Modes, Proceed, Replies
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
        assert one.body(asking()[10:]) == ()
        replies = one.body(b"", end=True)
        assert kinds(replies) == [Kind.REQUEST_HEADERS, *[Kind.REQUEST_BODY] * 3]

    def test_can_be_followed_by_trailers(self) -> None:
        one = peer()
        one.headers()
        assert one.body(asking()) == ()
        assert kinds(one.trailers()) == [
            Kind.REQUEST_HEADERS,
            Kind.REQUEST_BODY,
            Kind.REQUEST_TRAILERS,
        ]

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
