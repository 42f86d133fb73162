"""The body's `model` changes to the servers' name, in every mode that allows it."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import pytest

from extproc.core.conversation.events import (
    BodyMode,
    Chunk,
    Event,
    Immediate,
    Kind,
    Modes,
    Proceed,
    Replies,
)
from extproc.core.conversation.head import HEAD_LIMIT
from extproc.core.conversation.provisional import PENDING
from extproc.core.conversation.state_machine import Conversation
from extproc.core.schema import ModelSpec
from tests.core.builders import TWO_ADDRESSES, by_service, model_spec, router, split_spec

LLAMA = model_spec("llama", aliases=["l", "longer-than-llama"], adapters=["sql"])
QWEN = model_spec("qwen", endpoints=["10.0.1.1:8000"]).model_copy(
    update={"served_name": "Qwen/Qwen3"}
)
SPLIT = split_spec("canary", llama=1, qwen=1)
FORM = {"content-type": b"multipart/form-data; boundary=XX"}


def asking(model: str, content: str = "hello", **more: Any) -> bytes:
    """Return a body whose beginning is sufficient, because it shows that there is no salt."""
    messages = [{"role": "user", "content": content}]
    return json.dumps({"model": model, "cache_salt": None, "messages": messages, **more}).encode()


def form(model: str) -> bytes:
    field = f'Content-Disposition: form-data; name="model"\r\n\r\n{model}'
    return f"--XX\r\n{field}\r\n--XX--\r\n".encode()


def decided(replies: Replies) -> Proceed:
    """Return the reply with the decision: the first one."""
    reply = replies[0]
    assert isinstance(reply, Proceed)
    assert reply.decision is not None
    return reply


def streamed(replies: Replies) -> bytes:
    return b"".join(reply.body for reply in replies if isinstance(reply, Chunk))


class Peer:
    """Envoy's side of one stream."""

    def __init__(self, mode: BodyMode, *specs: ModelSpec) -> None:
        self.router = router(*(specs or (LLAMA, QWEN, SPLIT)))
        self.conversation = Conversation(self.router, Random(0))
        self.mode = mode

    def headers(self, path: str = "/v1/chat/completions", **others: bytes) -> Replies:
        named = {name.replace("_", "-"): value for name, value in others.items()}
        headers = {":method": b"POST", ":path": path.encode(), **named}
        modes = Modes(self.mode)
        return self.conversation.receive(Event(Kind.REQUEST_HEADERS, headers=headers, modes=modes))

    def body(self, part: bytes, *, end: bool = True) -> Replies:
        return self.conversation.receive(Event(Kind.REQUEST_BODY, body=part, end_of_stream=end))


class TestBufferedBody:
    def send(self, body: bytes, *, end: bool = True, **headers: bytes) -> Proceed:
        peer = Peer(BodyMode.BUFFERED)
        peer.headers("/v1/chat/completions", **headers)
        (reply,) = peer.body(body, end=end)
        return decided((reply,))

    @pytest.mark.parametrize(
        ("requested", "served"),
        [
            ("l", "llama"),
            ("longer-than-llama", "llama"),
            ("llama_sql", "sql"),
            ("qwen", "Qwen/Qwen3"),
        ],
    )
    def test_is_replaced_with_its_new_length(self, requested: str, served: str) -> None:
        reply = self.send(asking(requested))
        assert reply.body == asking(served)
        assert reply.set_headers == (("content-length", str(len(asking(served)))),)
        assert reply.remove_headers == ()

    @pytest.mark.parametrize("requested", ["llama", "sql"])
    def test_with_the_servers_name_passes_unchanged(self, requested: str) -> None:
        reply = self.send(asking(requested))
        assert (reply.body, reply.set_headers, reply.remove_headers) == (None, (), ())

    def test_in_part_has_no_content_length(self) -> None:
        body = asking("l", "x" * 1000)
        reply = self.send(body[:500], end=False)
        assert reply.body == asking("llama", "x" * 1000)[:504]
        assert (reply.set_headers, reply.remove_headers) == ((), ("content-length",))

    def test_in_part_without_its_model_passes_unchanged(self) -> None:
        body = json.dumps({"messages": "x" * 100, "model": "l"}).encode()[:90]
        reply = self.send(body, end=False, x_model=b"l")
        assert (reply.body, reply.set_headers, reply.remove_headers) == (None, (), ())

    def test_can_be_a_form(self) -> None:
        peer = Peer(BodyMode.BUFFERED)
        peer.headers("/v1/audio/transcriptions", content_type=FORM["content-type"])
        assert decided(peer.body(form("l"))).body == form("llama")

    def test_can_come_without_headers(self) -> None:
        peer = Peer(BodyMode.BUFFERED)
        assert decided(peer.body(asking("l"))).body == asking("llama")

    def test_without_endpoints_is_refused(self) -> None:
        peer = Peer(BodyMode.BUFFERED, by_service("gone"), split_spec("canary", gone=1))
        peer.headers()
        (reply,) = peer.body(asking("canary"))
        assert isinstance(reply, Immediate)
        assert reply.status == 503


class TestDuplexBody:
    @pytest.mark.parametrize(
        ("requested", "served"), [("l", "llama"), ("llama_sql", "sql"), ("qwen", "Qwen/Qwen3")]
    )
    @pytest.mark.parametrize("cut", [1, 10, 15, 200, 900])
    def test_is_renamed(self, requested: str, served: str, cut: int) -> None:
        peer = Peer(BodyMode.DUPLEX)
        body = asking(requested, "x" * 1000)
        replies = peer.headers() + peer.body(body[:cut], end=False) + peer.body(body[cut:])
        assert streamed(replies) == asking(served, "x" * 1000)
        # Envoy removes `content-length` itself.
        assert (decided(replies).set_headers, decided(replies).remove_headers) == ((), ())
        assert decided(replies).body is None

    def test_with_the_servers_name_is_unchanged(self) -> None:
        peer = Peer(BodyMode.DUPLEX)
        assert streamed(peer.headers() + peer.body(asking("llama"))) == asking("llama")

    def test_changes_only_in_the_parsed_part(self) -> None:
        peer = Peer(BodyMode.DUPLEX)
        peer.headers(x_model=b"l")
        late = json.dumps({"messages": "x" * HEAD_LIMIT, "model": "l"}).encode()
        assert streamed(peer.body(late, end=False)) == late

    def test_changes_each_model_key_if_parsed_whole(self) -> None:
        peer = Peer(BodyMode.DUPLEX)
        peer.headers()
        late = {"messages": "x" * HEAD_LIMIT, "model": "l"}
        changed = json.dumps({**late, "model": "llama"}).encode()
        assert streamed(peer.body(json.dumps(late).encode())) == changed

    def test_is_complete_if_its_head_ends_in_a_large_piece(self) -> None:
        peer = Peer(BodyMode.DUPLEX)
        peer.headers()
        body, expected = (asking(model, "x" * 200_000) for model in ("l", "llama"))
        assert streamed(peer.body(body)) == expected

    def test_can_be_a_form(self) -> None:
        peer = Peer(BodyMode.DUPLEX)
        peer.headers("/v1/audio/transcriptions", content_type=FORM["content-type"])
        assert streamed(peer.body(form("l"))) == form("llama")

    def test_comes_before_its_trailers(self) -> None:
        peer = Peer(BodyMode.DUPLEX)
        peer.headers()
        peer.body(asking("l"), end=False)
        (reply,) = peer.conversation.receive(Event(Kind.REQUEST_TRAILERS))
        assert isinstance(reply, Proceed)
        assert reply.whole_body == asking("llama")


def test_body_that_envoy_does_not_show_passes_unchanged() -> None:
    reply = decided(Peer(BodyMode.NONE).headers(x_model=b"l"))
    assert reply.decision is not None
    assert reply.decision.rename == "llama"
    assert (reply.body, reply.set_headers, reply.remove_headers) == (None, (), ())


class TestSplit:
    @pytest.mark.parametrize("mode", [BodyMode.BUFFERED, BodyMode.DUPLEX])
    def test_renames_to_the_target_and_keeps_conversations_together(self, mode: BodyMode) -> None:
        served = {"llama": "llama", "qwen": "Qwen/Qwen3"}
        seen = set()
        for content in [f"question {i}" for i in range(20)]:
            models = set()
            for turn in ("a", "b"):
                peer = Peer(mode)
                early = peer.headers()
                body = asking("canary", content, turn=turn)
                replies = peer.body(body)
                if mode is BodyMode.BUFFERED:
                    assert isinstance(early[0], Proceed)
                    assert early[0].target == PENDING
                reply = decided(replies)
                assert reply.decision is not None
                model = reply.decision.model
                expected = asking(served[model], content, turn=turn)
                assert (reply.body or streamed(replies)) == expected
                models.add(model)
            assert len(models) == 1
            seen |= models
        assert seen == set(served)

    def test_named_in_a_header_leaves_the_target_pending(self) -> None:
        (early,) = Peer(BodyMode.BUFFERED).headers(x_model=b"canary")
        assert isinstance(early, Proceed)
        assert early.target == PENDING

    def test_of_the_only_model_has_a_provisional_target(self) -> None:
        (early,) = Peer(BodyMode.BUFFERED, LLAMA, split_spec("canary", llama=1)).headers()
        assert isinstance(early, Proceed)
        assert early.target in TWO_ADDRESSES

    def test_waits_for_its_own_key(self) -> None:
        by_session = model_spec("llama", prefixSource="Header:x-session")
        peer = Peer(BodyMode.AHEAD, by_session, QWEN, split_spec("canary", llama=1))
        peer.headers(x_session=b"s")
        body = asking("canary", "x" * 200)
        assert peer.body(body[:80], end=False) == ()
        _, first, second = peer.body(body[80:200], end=False)
        assert isinstance(first, Proceed)
        assert first.body == body[:200].replace(b"canary", b"llama")
        assert isinstance(second, Proceed)
        assert second.body == b""

    def test_by_a_header_does_not_wait(self) -> None:
        by_user = split_spec("canary", "Header:X-User", qwen=1)
        llama = model_spec("llama", prefixSource="Header:x-session")
        other = QWEN.model_copy(update={"load_balancing": llama.load_balancing})
        peer = Peer(BodyMode.AHEAD, llama, other, by_user)
        peer.headers(x_user=b"u", x_session=b"s")
        _, part = peer.body(b'{"model": "canary", "mess', end=False)
        assert isinstance(part, Proceed)
        assert part.body == b'{"model": "Qwen/Qwen3", "mess'

    def test_is_decided_by_a_header_if_bodies_are_not_shown(self) -> None:
        by_user = split_spec("canary", "Header:X-User", llama=1, qwen=1)
        models = set()
        for user in range(20):
            chosen = set()
            for _ in range(3):
                peer = Peer(BodyMode.NONE, LLAMA, QWEN, by_user)
                reply = decided(peer.headers(x_model=b"canary", x_user=str(user).encode()))
                assert reply.decision is not None
                chosen.add(reply.decision.model)
            assert len(chosen) == 1
            models |= chosen
        assert models == {"llama", "qwen"}
