"""Responses that name the model as the request did (`answerAsRequested`)."""

from __future__ import annotations

import json

import pytest

from extproc.core.conversation.events import BodyMode, Chunk, Event, Kind, Modes, Proceed, Replies
from extproc.core.schema import ModelSpec
from tests.core.builders import model_spec, split_spec
from tests.core.conversation.test_duplex import Peer, asking

LLAMA = model_spec("llama", aliases=["l"], adapters=["sql"])
RENAMING = LLAMA.model_copy(update={"answer_as_requested": True, "served_name": "meta/llama"})
STREAMED = Modes(BodyMode.BUFFERED, BodyMode.OTHER)
SHOWN = [
    STREAMED,
    Modes(BodyMode.BUFFERED, BodyMode.BUFFERED),
    Modes(BodyMode.AHEAD, BodyMode.OTHER),
    Modes(BodyMode.DUPLEX, BodyMode.DUPLEX),
]
ANSWER = b'{"id": "c1", "model": "meta/llama", "choices": []}'
EVENT = b'data: {"id": "c1", "model": "meta/llama", "choices": []}\n\n'


def routed(*specs: ModelSpec, name: str = "l", modes: Modes = STREAMED) -> Peer:
    peer = Peer(*specs, modes=modes)
    peer.headers()
    peer.body(asking(name), end=True)
    assert peer.in_flight == 1
    return peer


def head(peer: Peer, media_type: str = "application/json") -> Proceed:
    event = Event(Kind.RESPONSE_HEADERS, media_type=media_type)
    (reply,) = peer.conversation.receive(event)
    assert isinstance(reply, Proceed)
    return reply


def passed(replies: Replies, part: bytes) -> bytes:
    """Return the bytes that replace this part."""
    if not replies:
        return b""
    (reply,) = replies
    if isinstance(reply, Chunk):
        return reply.body
    assert isinstance(reply, Proceed)
    return part if reply.body is None else reply.body


class TestResponse:
    @pytest.mark.parametrize("modes", SHOWN)
    @pytest.mark.parametrize(
        ("media_type", "body"), [("application/json", ANSWER), ("text/event-stream", EVENT)]
    )
    def test_carries_the_requested_name(self, modes: Modes, media_type: str, body: bytes) -> None:
        peer = routed(RENAMING, modes=modes)
        assert "content-length" in head(peer, media_type).remove_headers
        parts = [body[:20], body[20:35], body[35:]]
        got = [passed(peer.response(part), part) for part in parts]
        assert b"".join(got) == body.replace(b"meta/llama", b"l")
        assert passed(peer.response(b"", end=True), b"") == b""

    @pytest.mark.parametrize("name", ["llama", "l", "llama_sql"])
    def test_carries_any_requested_name(self, name: str) -> None:
        peer = routed(RENAMING, name=name)
        head(peer)
        body = passed(peer.response(ANSWER, end=True), ANSWER)
        assert json.loads(body)["model"] == name

    def test_carries_a_splits_name_if_configured(self) -> None:
        split = split_spec("canary", llama=1)
        wanting = split.model_copy(update={"answer_as_requested": True})
        for spec, name in ((split, b"meta/llama"), (wanting, b"canary")):
            peer = routed(RENAMING, spec, name="canary")
            head(peer)
            body = passed(peer.response(ANSWER, end=True), ANSWER)
            assert body == ANSWER.replace(b"meta/llama", name)

    @pytest.mark.parametrize(
        ("spec", "name", "media_type"),
        [
            (LLAMA, "l", "application/json"),  # not wanted
            (LLAMA.model_copy(update={"answer_as_requested": True}), "llama", "application/json"),
            (RENAMING, "sql", "application/json"),  # the servers' own name
            (RENAMING, "l", ""),  # compressed, or without a type
            (RENAMING, "l", "audio/wav"),
        ],
    )
    def test_passes_unchanged_otherwise(self, spec: ModelSpec, name: str, media_type: str) -> None:
        peer = routed(spec, name=name)
        assert head(peer, media_type) == Proceed(Kind.RESPONSE_HEADERS)
        assert peer.response(ANSWER, end=True) == (Proceed(Kind.RESPONSE_BODY),)

    def test_with_trailers_keeps_its_held_bytes(self) -> None:
        peer = routed(RENAMING, modes=Modes(BodyMode.DUPLEX, BodyMode.DUPLEX))
        head(peer)
        assert passed(peer.response(b'{"mod'), b"") == b"{"
        held, trailers = peer.conversation.receive(Event(Kind.RESPONSE_TRAILERS))
        assert held == Chunk(Kind.RESPONSE_BODY, b'"mod')
        assert trailers == Proceed(Kind.RESPONSE_TRAILERS)


class TestBodyThatEnvoyDoesNotShow:
    @pytest.mark.parametrize("request_mode", [BodyMode.BUFFERED, BodyMode.NONE])
    def test_is_requested_if_a_name_must_change(self, request_mode: BodyMode) -> None:
        peer = Peer(RENAMING, modes=Modes(request_mode))
        peer.headers(x_model="l")
        if request_mode is BodyMode.BUFFERED:
            peer.body(asking("l"), end=True)
        reply = head(peer)
        assert reply.show_response
        assert reply.remove_headers == ("content-length",)

    def test_is_not_requested_if_envoy_would_ignore_that(self) -> None:
        for mode in (BodyMode.AHEAD, BodyMode.DUPLEX):
            peer = routed(RENAMING, modes=Modes(mode))
            assert head(peer) == Proceed(Kind.RESPONSE_HEADERS)
            assert peer.conversation.response is not None
            assert peer.conversation.response.keeps_name

    def test_is_not_requested_otherwise(self) -> None:
        assert head(routed(LLAMA, modes=Modes())) == Proceed(Kind.RESPONSE_HEADERS)
        assert head(routed(RENAMING, modes=Modes()), "") == Proceed(Kind.RESPONSE_HEADERS)
