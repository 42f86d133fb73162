"""Bodies that the sidecar streams back (FULL_DUPLEX_STREAMED): the endpoint picker protocol."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import pytest

from extproc.core.conversation.events import (
    CHUNK_LIMIT,
    BodyMode,
    Chunk,
    Event,
    Immediate,
    Kind,
    Modes,
    Proceed,
    Replies,
    chunks,
)
from extproc.core.conversation.head import HEAD_LIMIT
from extproc.core.conversation.provisional import PENDING
from extproc.core.conversation.state_machine import Conversation
from extproc.core.request.refusals import InvalidRequest
from extproc.core.schema import ModelSpec
from tests.core.builders import TWO_ADDRESSES, model_spec, router

CHAT = "/v1/chat/completions"
DUPLEX = Modes(BodyMode.DUPLEX, BodyMode.DUPLEX)
LLAMA = model_spec("llama", prefixCharLength=20)
QWEN = model_spec("qwen", endpoints=["10.0.1.1:8000"])


class Peer:
    """Envoy's side of one stream."""

    def __init__(self, *specs: ModelSpec, modes: Modes = DUPLEX) -> None:
        self.router = router(*(specs or (LLAMA,)))
        self.conversation = Conversation(self.router, Random(0))
        self.modes = modes

    def headers(
        self,
        path: str = CHAT,
        *,
        end: bool = False,
        method: str = "POST",
        subset: tuple[str, ...] | None = None,
        **others: str,
    ) -> Replies:
        named = {name.replace("_", "-"): value.encode() for name, value in others.items()}
        raw = {":method": method.encode(), ":path": path.encode(), **named}
        return self.conversation.receive(
            Event(
                Kind.REQUEST_HEADERS,
                headers=raw,
                end_of_stream=end,
                modes=self.modes,
                subset=subset,
            )
        )

    def body(self, part: bytes, *, end: bool = False) -> Replies:
        return self.conversation.receive(Event(Kind.REQUEST_BODY, body=part, end_of_stream=end))

    def trailers(self) -> Replies:
        return self.conversation.receive(Event(Kind.REQUEST_TRAILERS))

    def response(self, part: bytes, *, end: bool = False) -> Replies:
        return self.conversation.receive(Event(Kind.RESPONSE_BODY, body=part, end_of_stream=end))

    def routed(self, body: bytes | None = None) -> Proceed:
        """Send a whole request, and return the reply to its headers."""
        assert self.headers() == ()
        (reply, *_) = self.body(asking() if body is None else body, end=True)
        assert isinstance(reply, Proceed)
        return reply

    @property
    def in_flight(self) -> int:
        return sum(self.router.fleet.ledger.loads.values())


def asking(model: str = "llama", content: str = "hello", **more: Any) -> bytes:
    """Return a body whose beginning is sufficient, because it shows that there is no salt."""
    messages = [{"role": "user", "content": content}]
    return json.dumps({"model": model, "cache_salt": None, "messages": messages, **more}).encode()


LARGE = asking(content="x" * HEAD_LIMIT)
"""A body that is decided before its end."""


def streamed(replies: Replies, kind: Kind = Kind.REQUEST_BODY) -> bytes:
    """Return the bytes of these replies, which are pieces of a body."""
    assert all(isinstance(reply, Chunk) and reply.kind is kind for reply in replies)
    return b"".join(reply.body for reply in replies if isinstance(reply, Chunk))


def refusal(replies: Replies) -> tuple[int, str]:
    (reply,) = replies
    assert isinstance(reply, Immediate)
    return reply.status, json.loads(reply.body)["error"]["code"]


class TestHeaders:
    def test_get_the_decision_once_the_body_is_sufficient(self) -> None:
        peer = Peer()
        assert peer.headers() == ()
        headers, *body = peer.body(asking(), end=True)
        assert isinstance(headers, Proceed)
        assert headers.kind is Kind.REQUEST_HEADERS
        assert headers.decision is not None
        assert headers.target == headers.decision.address
        assert headers.target in TWO_ADDRESSES
        assert headers.reroute
        assert body == [Chunk(Kind.REQUEST_BODY, asking(), end_of_stream=True)]

    def test_get_the_decision_before_a_large_bodys_end(self) -> None:
        peer = Peer()
        peer.headers()
        body = asking(content="x" * 2 * HEAD_LIMIT)
        assert peer.body(body[:300]) == ()
        headers, *held = peer.body(body[300 : HEAD_LIMIT + 300])
        assert isinstance(headers, Proceed)
        assert streamed(tuple(held)) == body[: HEAD_LIMIT + 300]
        assert peer.in_flight == 1

    def test_wait_for_the_end_of_a_small_body_because_trailers_may_follow(self) -> None:
        peer = Peer()
        peer.headers()
        assert peer.body(asking(content="x" * 1000)) == ()
        assert peer.in_flight == 0
        assert isinstance(peer.body(b"", end=True)[0], Proceed)

    def test_carry_the_destination_with_the_fallback(self) -> None:
        reply = Peer().routed()
        (other,) = set(TWO_ADDRESSES) - {reply.target}
        assert reply.destination == f"{reply.target},{other}"

    def test_carry_one_destination_without_a_fallback(self) -> None:
        assert Peer(QWEN).routed(asking("qwen")).destination == "10.0.1.1:8000"

    def test_carry_the_target_alone_in_the_other_modes(self) -> None:
        peer = Peer(modes=Modes(BodyMode.BUFFERED, BodyMode.DUPLEX))
        (early,) = peer.headers()
        (late,) = peer.body(asking(), end=True)
        (unseen,) = Peer(modes=Modes(BodyMode.NONE, BodyMode.DUPLEX)).headers()
        for reply in (early, late, unseen):
            assert isinstance(reply, Proceed)
            assert reply.destination == reply.target
            assert reply.target in TWO_ADDRESSES

    def test_carry_no_destination_with_a_pending_target(self) -> None:
        peer = Peer(LLAMA, QWEN, modes=Modes(BodyMode.BUFFERED, BodyMode.DUPLEX))
        (early,) = peer.headers()
        assert isinstance(early, Proceed)
        assert (early.target, early.destination) == (PENDING, "")

    def test_stay_within_the_gateways_subset(self) -> None:
        for allowed in TWO_ADDRESSES:
            peer = Peer()
            peer.headers(subset=(allowed,))
            reply, *_ = peer.body(asking(), end=True)
            assert isinstance(reply, Proceed)
            assert reply.destination == allowed

    def test_that_are_repeated_get_no_reply(self) -> None:
        peer = Peer()
        peer.headers()
        assert peer.headers("/elsewhere") == ()
        assert isinstance(peer.body(LARGE)[0], Proceed)
        assert peer.headers() == ()
        peer.body(b"", end=True)
        assert peer.headers() == ()


class TestBody:
    def test_is_streamed_back_unchanged(self) -> None:
        peer = Peer()
        peer.headers()
        peer.body(LARGE)
        for part in (b"more", b"\x00\xff", b"x" * CHUNK_LIMIT):
            assert peer.body(part) == (Chunk(Kind.REQUEST_BODY, part),)
        assert peer.body(b"last", end=True) == (Chunk(Kind.REQUEST_BODY, b"last", True),)

    def test_is_held_until_it_is_sufficient(self) -> None:
        peer = Peer()
        peer.headers()
        body = asking()
        assert peer.body(body[:5]) == ()
        assert peer.body(body[5:10]) == ()
        assert peer.in_flight == 0
        _, *given = peer.body(body[10:], end=True)
        assert given == [Chunk(Kind.REQUEST_BODY, body, end_of_stream=True)]

    def test_can_end_with_an_empty_part(self) -> None:
        peer = Peer()
        peer.headers()
        peer.body(LARGE)
        assert peer.body(b"") == ()
        assert peer.body(b"", end=True) == (Chunk(Kind.REQUEST_BODY, b"", end_of_stream=True),)

    def test_is_ignored_after_its_end(self) -> None:
        peer = Peer()
        peer.routed()
        for end in (True, False):
            assert peer.body(asking(), end=end) == ()
        assert peer.trailers() == ()
        assert peer.in_flight == 1

    def test_is_decided_at_the_limit(self) -> None:
        peer = Peer(LLAMA, QWEN)
        peer.headers(x_model="qwen")
        part = b'{"messages": [{"role": "user", "content": "' + b"x" * 30_000
        assert peer.body(part) == ()
        headers, *held = peer.body(b"x" * HEAD_LIMIT)
        assert isinstance(headers, Proceed)
        assert headers.target == "10.0.1.1:8000"
        assert streamed(tuple(held)) == part + b"x" * HEAD_LIMIT
        assert [len(piece.body) for piece in held if isinstance(piece, Chunk)] == [
            CHUNK_LIMIT,
            len(part) + HEAD_LIMIT - CHUNK_LIMIT,
        ]


class TestRequestTrailers:
    def test_end_a_held_body(self) -> None:
        peer = Peer()
        peer.headers()
        body = asking()
        assert peer.body(body[:9]) == peer.body(body[9:]) == ()
        (headers,) = peer.trailers()
        assert isinstance(headers, Proceed)
        assert headers.kind is Kind.REQUEST_HEADERS
        assert headers.whole_body == body, "Envoy would repeat a body that is streamed back"
        assert headers.destination.count(":") == 2, "Envoy can retry it"
        assert peer.body(b"late") == peer.trailers() == ()
        assert peer.in_flight == 1

    def test_end_a_passing_body(self) -> None:
        peer = Peer()
        peer.headers()
        peer.body(LARGE)
        assert peer.trailers() == (Proceed(Kind.REQUEST_TRAILERS),)
        assert peer.body(b"late", end=True) == ()
        assert peer.in_flight == 1

    def test_without_a_body_mean_an_empty_body(self) -> None:
        peer = Peer()
        peer.headers()
        assert refusal(peer.trailers()) == (400, "invalid_request")


class TestRefusals:
    def test_are_immediate_responses_and_end_the_conversation(self) -> None:
        peer = Peer()
        peer.headers()
        assert refusal(peer.body(asking("gpt"))) == (404, "model_not_found")
        assert peer.body(b"more", end=True) == ()
        assert peer.trailers() == ()
        assert peer.in_flight == 0

    def test_of_a_path_do_not_wait_for_the_body(self) -> None:
        assert refusal(Peer().headers("/nowhere")) == (404, "unknown_path")

    def test_of_a_malformed_body(self) -> None:
        peer = Peer()
        peer.headers()
        assert refusal(peer.body(b"no JSON")) == (400, "invalid_request")
        assert isinstance(peer.conversation.verdict, InvalidRequest)

    def test_of_a_request_without_a_body(self) -> None:
        assert refusal(Peer().headers(end=True)) == (400, "invalid_request")

    def test_of_a_subset_without_ready_endpoints(self) -> None:
        peer = Peer()
        peer.headers(subset=())
        assert refusal(peer.body(asking(), end=True)) == (503, "no_endpoints")

    def test_do_not_apply_to_the_list_of_models(self) -> None:
        (reply,) = Peer().headers("/v1/models", method="GET", end=True)
        assert isinstance(reply, Immediate)
        assert reply.status == 200


class TestResponse:
    def test_is_streamed_back_at_once(self) -> None:
        peer = Peer()
        peer.routed()
        assert peer.conversation.receive(Event(Kind.RESPONSE_HEADERS)) == (
            Proceed(Kind.RESPONSE_HEADERS),
        )
        for part in (b"data: {}\n\n", b"data: [DONE]\n\n"):
            assert peer.response(part) == (Chunk(Kind.RESPONSE_BODY, part),)
        assert peer.response(b"", end=True) == (Chunk(Kind.RESPONSE_BODY, b"", True),)
        assert peer.response(b"again", end=True) == ()

    def test_is_cut_to_the_protocols_limit(self) -> None:
        peer = Peer()
        peer.routed()
        body = bytes(range(256)) * 1_000
        replies = peer.response(body, end=True)
        assert streamed(replies, Kind.RESPONSE_BODY) == body
        assert max(len(a.body) for a in replies if isinstance(a, Chunk)) <= CHUNK_LIMIT

    def test_can_end_with_trailers(self) -> None:
        peer = Peer()
        peer.routed()
        peer.response(b"{}")
        trailers = peer.conversation.receive(Event(Kind.RESPONSE_TRAILERS))
        assert trailers == (Proceed(Kind.RESPONSE_TRAILERS),)

    def test_can_begin_before_the_requests_end(self) -> None:
        peer = Peer()
        peer.headers()
        peer.body(LARGE)
        assert peer.response(b"early") == (Chunk(Kind.RESPONSE_BODY, b"early"),)
        assert peer.body(b"more", end=True) == (Chunk(Kind.REQUEST_BODY, b"more", True),)

    def test_can_be_envoys_own_while_the_request_is_held(self) -> None:
        peer = Peer()
        peer.headers()
        assert peer.conversation.receive(Event(Kind.RESPONSE_HEADERS)) == (
            Proceed(Kind.RESPONSE_HEADERS),
        )
        assert streamed(peer.response(b"timeout", end=True), Kind.RESPONSE_BODY) == b"timeout"
        assert peer.in_flight == 0

    @pytest.mark.parametrize("mode", [BodyMode.NONE, BodyMode.BUFFERED, BodyMode.OTHER])
    @pytest.mark.parametrize("request_mode", [BodyMode.BUFFERED, BodyMode.DUPLEX])
    def test_passes_unchanged_in_other_modes(self, mode: BodyMode, request_mode: BodyMode) -> None:
        peer = Peer(modes=Modes(request_mode, mode))
        peer.headers()
        peer.body(asking(), end=True)
        for end in (False, True, True):
            assert peer.response(b"x", end=end) == (Proceed(Kind.RESPONSE_BODY),)

    def test_is_streamed_back_also_without_a_request(self) -> None:
        peer = Peer()
        first = Event(Kind.RESPONSE_HEADERS, modes=DUPLEX)
        assert peer.conversation.receive(first) == (Proceed(Kind.RESPONSE_HEADERS),)
        assert peer.response(b"x", end=True) == (Chunk(Kind.RESPONSE_BODY, b"x", True),)

    @pytest.mark.parametrize("end", [True, False])
    def test_moves_the_lease_to_the_endpoint_that_served(self, end: bool) -> None:
        peer = Peer()
        peer.headers()
        reply, *_ = peer.body(LARGE, end=end)
        assert isinstance(reply, Proceed)
        (other,) = set(TWO_ADDRESSES) - {reply.target}
        peer.conversation.receive(Event(Kind.RESPONSE_HEADERS, served_by=other))
        assert dict(peer.router.fleet.ledger.loads) == {other: 1}
        peer.conversation.close()
        assert peer.in_flight == 0


class TestChunks:
    @pytest.mark.parametrize(
        ("size", "pieces"),
        [
            (1, [1]),
            (CHUNK_LIMIT, [CHUNK_LIMIT]),
            (CHUNK_LIMIT + 1, [CHUNK_LIMIT, 1]),
            (2 * CHUNK_LIMIT, [CHUNK_LIMIT, CHUNK_LIMIT]),
        ],
    )
    @pytest.mark.parametrize("end", [True, False])
    def test_have_the_largest_size_and_the_last_is_the_end(
        self, size: int, pieces: list[int], end: bool
    ) -> None:
        made = chunks(Kind.REQUEST_BODY, b"x" * size, end_of_stream=end)
        assert [len(piece.body) for piece in made] == pieces
        assert [piece.end_of_stream for piece in made] == [*[False] * (len(pieces) - 1), end]

    def test_of_no_bytes_are_none_except_for_the_end(self) -> None:
        assert chunks(Kind.REQUEST_BODY, b"", end_of_stream=False) == ()
        assert chunks(Kind.REQUEST_BODY, b"", end_of_stream=True) == (
            Chunk(Kind.REQUEST_BODY, b"", end_of_stream=True),
        )


def test_stream_that_ends_with_a_held_request_holds_no_lease() -> None:
    peer = Peer()
    peer.headers()
    peer.body(asking()[:9])
    peer.conversation.close()
    assert peer.conversation.verdict is None
    assert peer.body(asking(), end=True) == ()
    assert peer.in_flight == 0


def test_routed_conversation_holds_no_body() -> None:
    peer = Peer()
    peer.headers()
    assert peer.body(LARGE)
    assert peer.conversation.head is None


def test_conversation_keeps_the_headers_of_the_key() -> None:
    peer = Peer(model_spec("llama", prefixSource="Header:x-session"))
    peer.headers(x_session="s-1")
    reply, *_ = peer.body(b'{"model": "llama"}', end=True)
    assert isinstance(reply, Proceed)
    assert reply.decision is not None
    assert reply.decision.key is not None
