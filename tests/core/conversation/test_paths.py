"""Requests by path, method and headers, in every mode of Envoy."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import pytest

from extproc.core.conversation.events import (
    ROUTING_HEADERS,
    BodyMode,
    Chunk,
    Event,
    Immediate,
    Kind,
    Modes,
    Proceed,
    Replies,
)
from extproc.core.conversation.state_machine import Conversation
from extproc.core.conversation.verdict import Listed, Passed
from extproc.core.request.refusals import InvalidRequest
from extproc.core.routing.decision import Decision
from extproc.core.schema import ModelSpec
from tests.core.builders import TWO_ADDRESSES, model_spec, router, split_spec

LLAMA = model_spec("llama", adapters=["sql"], aliases=["l"])
QWEN = model_spec("qwen", endpoints=["10.0.1.1:8000"])
EVERY_MODE = list(BodyMode)
RESPONSE = "/v1/responses/resp_1"


class Peer:
    """Envoy's side of one stream, in any mode."""

    def __init__(
        self, *specs: ModelSpec, mode: BodyMode = BodyMode.BUFFERED, pass_unknown: bool = False
    ) -> None:
        self.mode = mode
        self.router = router(*(specs or (LLAMA, QWEN)))
        self.conversation = Conversation(self.router, Random(0), pass_unknown=pass_unknown)

    def headers(
        self, path: str, method: str = "POST", *, end: bool = False, **others: str
    ) -> Replies:
        named = {name.replace("_", "-"): value.encode() for name, value in others.items()}
        raw = {":method": method.encode(), ":path": path.encode(), **named}
        modes = Modes(self.mode)
        return self.send(Event(Kind.REQUEST_HEADERS, headers=raw, end_of_stream=end, modes=modes))

    def body(self, content: dict[str, Any] | bytes, *, end: bool = True) -> Replies:
        raw = content if isinstance(content, bytes) else json.dumps(content).encode()
        return self.send(Event(Kind.REQUEST_BODY, body=raw, end_of_stream=end))

    def send(self, event: Event) -> Replies:
        return self.conversation.receive(event)

    @property
    def decision(self) -> Decision:
        verdict = self.conversation.verdict
        assert isinstance(verdict, Decision), verdict
        return verdict


def refused(replies: Replies) -> tuple[int, Any]:
    (reply,) = replies
    assert isinstance(reply, Immediate)
    return reply.status, json.loads(reply.body)


def message(replies: Replies) -> str:
    status, body = refused(replies)
    assert status == 400
    told: str = body["error"]["message"]
    return told


class TestPathBelowPrefix:
    def test_is_routed_like_the_path_itself(self) -> None:
        peer = Peer()
        peer.headers("/team/llama/v1//chat/completions/?beta=true")
        peer.body({"model": "llama", "messages": []})
        assert peer.decision.model == "llama"


class TestRequestWithoutModel:
    @pytest.mark.parametrize("body", [{"messages": []}, {"model": None, "messages": []}])
    def test_goes_to_the_only_model(self, body: dict[str, Any]) -> None:
        peer = Peer(LLAMA)
        peer.headers("/v1/chat/completions")
        (reply,) = peer.body(body)
        assert peer.decision.model == "llama"
        assert isinstance(reply, Proceed)
        assert reply.body is None

    def test_goes_to_the_only_model_and_is_renamed(self) -> None:
        peer = Peer(LLAMA.model_copy(update={"served_name": "meta/llama"}), mode=BodyMode.AHEAD)
        peer.headers("/v1/chat/completions")
        _, body = peer.body({"messages": []})
        assert isinstance(body, Proceed)
        assert body.body in (None, b'{"messages": []}')

    @pytest.mark.parametrize("mode", [BodyMode.BUFFERED, BodyMode.AHEAD, BodyMode.DUPLEX])
    def test_goes_to_the_only_model_with_a_cut_body(self, mode: BodyMode) -> None:
        peer = Peer(LLAMA, mode=mode)
        peer.headers("/v1/chat/completions")
        peer.body(b'{"messages": [{"role": "user", "content": "' + b"x" * 70_000, end=False)
        assert peer.decision.model == "llama"

    def test_goes_to_the_only_model_with_a_large_body(self) -> None:
        peer = Peer(LLAMA)
        peer.headers("/v1/chat/completions")
        peer.body({"messages": [{"role": "user", "content": "x" * 200_000}]})
        assert peer.decision.model == "llama"

    def test_goes_to_the_only_model_as_a_form(self) -> None:
        peer = Peer(LLAMA)
        peer.headers("/v1/videos", content_type="multipart/form-data; boundary=XX")
        part = b'--XX\r\nContent-Disposition: form-data; name="prompt"\r\n\r\na lake\r\n--XX--\r\n'
        peer.body(part)
        assert peer.decision.model == "llama"

    def test_goes_to_the_model_of_the_header(self) -> None:
        peer = Peer()
        peer.headers("/v1/chat/completions", x_model="qwen")
        peer.body({"messages": []})
        assert peer.decision.model == "qwen"

    def test_goes_to_the_model_of_the_body_before_the_header(self) -> None:
        peer = Peer()
        peer.headers("/v1/chat/completions", x_model="qwen")
        peer.body({"model": "llama", "messages": []})
        assert peer.decision.model == "llama"

    def test_is_refused_with_advice_if_there_are_several_models(self) -> None:
        for specs in ((LLAMA, QWEN), (LLAMA, split_spec("canary", llama=1))):
            peer = Peer(*specs)
            peer.headers("/v1/chat/completions")
            told = message(peer.body({"messages": []}))
            assert "Put 'model' into the body" in told
            assert "'x-model'" in told
            assert "llama" in told

    def test_is_refused_with_advice_if_bodies_are_not_shown(self) -> None:
        told = message(Peer(mode=BodyMode.NONE).headers("/v1/chat/completions"))
        assert "'x-model'" in told
        assert "Known models: l, llama, qwen, sql." in told

    def test_with_an_unknown_model_is_refused_also_with_one_model(self) -> None:
        peer = Peer(LLAMA)
        peer.headers("/v1/chat/completions")
        assert refused(peer.body({"model": "gpt"}))[0] == 404

    @pytest.mark.parametrize("body", [b"", b"[]", b'{"model": ""}', b'{"model": 7}'])
    def test_is_refused_with_a_malformed_body(self, body: bytes) -> None:
        peer = Peer(LLAMA)
        peer.headers("/v1/chat/completions")
        assert refused(peer.body(body))[0] == 400


class TestFormPath:
    def test_accepts_json(self) -> None:
        peer = Peer()
        peer.headers("/v1/images/edits", content_type="application/json; charset=utf-8")
        peer.body({"prompt": "x", "model": "qwen"})
        assert peer.decision.model == "qwen"

    def test_rejects_other_content(self) -> None:
        peer = Peer(LLAMA)
        peer.headers("/v1/images/edits", content_type="text/plain")
        assert "multipart/form-data" in message(peer.body(b"x"))


class TestNativeApi:
    @pytest.mark.parametrize(
        ("path", "prompt"),
        [
            ("/generate", {"text": "tell me of the sea"}),
            ("/generate", {"text": ["tell me of the sea", "another"]}),
            ("/generate", {"text": None, "prompt": None, "input_ids": [5, 6, 7]}),
            ("/inference/v1/generate", {"token_ids": [5, 6, 7]}),
        ],
    )
    def test_prompt_is_routed_like_that_of_a_completion(
        self, path: str, prompt: dict[str, Any]
    ) -> None:
        peer, same = Peer(LLAMA), Peer(LLAMA)
        peer.headers(path)
        peer.body({**prompt, "sampling_params": {}})
        same.headers("/v1/completions")
        same.body({"prompt": next(value for value in prompt.values() if value is not None)})
        assert peer.decision.key is not None
        assert peer.decision.key == same.decision.key

    def test_fields_on_other_paths_are_no_prompt(self) -> None:
        peer = Peer(LLAMA)
        peer.headers("/v1/completions")
        peer.body({"text": "tell me"})
        assert peer.decision.key is None


class TestRequestWithoutBody:
    @pytest.mark.parametrize("mode", EVERY_MODE)
    @pytest.mark.parametrize(("method", "path"), [("GET", RESPONSE), ("DELETE", "/v1/videos/v_1")])
    def test_goes_to_the_only_model_in_every_mode(
        self, mode: BodyMode, method: str, path: str
    ) -> None:
        peer = Peer(LLAMA, mode=mode)
        (reply,) = peer.headers(path, method, end=True)
        assert isinstance(reply, Proceed)
        assert reply.target in TWO_ADDRESSES
        assert reply.reroute
        assert peer.decision.rename is None

    def test_goes_to_the_model_of_the_header_or_the_query(self) -> None:
        for path, more in ((RESPONSE, {"x_model": "qwen"}), (f"{RESPONSE}?model=qwen", {})):
            peer = Peer()
            peer.headers(path, "GET", end=True, **more)
            assert peer.decision.model == "qwen"

    def test_is_refused_with_advice_if_there_are_several_models(self) -> None:
        told = message(Peer().headers(f"/team{RESPONSE}?x=y", "GET", end=True))
        assert f"GET /team{RESPONSE} does not name a model" in told
        assert "'x-model'" in told

    @pytest.mark.parametrize("mode", [BodyMode.BUFFERED, BodyMode.AHEAD, BodyMode.OTHER])
    def test_passes_a_body_unchanged(self, mode: BodyMode) -> None:
        peer = Peer(LLAMA, mode=mode)
        (reply,) = peer.headers(f"{RESPONSE}/cancel")
        assert isinstance(reply, Proceed)
        assert reply.target in TWO_ADDRESSES
        for end in (False, True):
            assert peer.body(b"{}", end=end) == (Proceed(Kind.REQUEST_BODY),)

    def test_gets_a_body_streamed_back(self) -> None:
        peer = Peer(LLAMA, mode=BodyMode.DUPLEX)
        peer.headers(f"{RESPONSE}/cancel")
        assert peer.body(b"{", end=False) == (Chunk(Kind.REQUEST_BODY, b"{"),)
        assert peer.body(b"}") == (Chunk(Kind.REQUEST_BODY, b"}", True),)
        assert peer.body(b"") == ()

    @pytest.mark.parametrize("method", ["GET", "HEAD", "DELETE"])
    def test_is_refused_on_a_path_that_needs_a_body(self, method: str) -> None:
        told = message(Peer(LLAMA).headers("/team/v1/chat/completions", method, end=True))
        assert told == f"{method} is not a method of /v1/chat/completions: use POST."

    def test_with_options_is_left_to_the_server(self) -> None:
        peer = Peer(LLAMA)
        peer.headers("/v1/chat/completions", "OPTIONS", end=True)
        assert peer.decision.model == "llama"


class TestModels:
    def one(self, path: str, **headers: str) -> tuple[int, Any]:
        peer = Peer()
        replies = peer.headers(path, "GET", end=True, **headers)
        status, body = refused(replies)
        if status == 200:
            assert peer.conversation.verdict == Listed()
        return status, body

    def test_are_returned_one_by_one(self) -> None:
        named = LLAMA.model_copy(update={"aliases": ("meta-llama/Llama-3",)})
        for path in ("meta-llama/Llama-3", "meta-llama%2FLlama-3", "meta-llama/Llama-3/"):
            status, entry = refused(Peer(named).headers(f"/v1/models/{path}", "GET", end=True))
            assert (status, entry["id"], entry["object"]) == (200, "meta-llama/Llama-3", "model")

    def test_unknown_is_404_in_openais_shape(self) -> None:
        status, body = self.one("/v1/models/gpt-9")
        assert (status, body["error"]["code"]) == (404, "model_not_found")
        assert "'gpt-9'" in body["error"]["message"]

    def test_are_in_anthropics_shape_for_its_clients(self) -> None:
        status, page = self.one("/v1/models?limit=20", anthropic_version="2023-06-01")
        assert (status, page["has_more"], page["first_id"]) == (200, False, "llama")
        _, entry = self.one("/v1/models/llama", anthropic_version="2023-06-01")
        assert entry["type"] == "model"

    def test_unknown_is_404_in_anthropics_shape_for_its_clients(self) -> None:
        status, body = self.one("/v1/models/gpt-9", anthropic_version="2023-06-01")
        assert (status, body["error"]["type"]) == (404, "not_found_error")

    def test_are_listed_with_their_context_length(self) -> None:
        peer = Peer(LLAMA)
        peer.router.fleet.context_lengths.set(TWO_ADDRESSES[0], 4096)
        _, entry = refused(peer.headers("/v1/models/l", "GET", end=True))
        assert entry["max_model_len"] == 4096


class TestAnthropicErrors:
    @pytest.mark.parametrize("path", ["/v1/messages", "/team/v1/messages/count_tokens?beta=true"])
    def test_are_used_on_its_paths(self, path: str) -> None:
        peer = Peer()
        peer.headers(path, x_request_id="id-1")
        replies = peer.body({"model": "gpt", "messages": []})
        status, body = refused(replies)
        assert status == 404
        assert set(body) == {"type", "error", "request_id"}
        assert (body["type"], body["request_id"]) == ("error", "id-1")
        assert body["error"]["type"] == "not_found_error"
        assert "'gpt'" in body["error"]["message"]

    def test_are_used_on_unknown_paths_below(self) -> None:
        _, body = refused(Peer().headers("/v1/messages/batches"))
        assert body["type"] == "error"

    def test_are_not_used_on_other_paths(self) -> None:
        peer = Peer()
        peer.headers("/v1/chat/completions", anthropic_version="2023-06-01")
        _, body = refused(peer.body(b"[]"))
        assert set(body["error"]) == {"message", "type", "param", "code"}


class TestRequestId:
    def test_is_in_a_refusals_headers_and_body(self) -> None:
        (reply,) = Peer().headers("/", x_request_id="3f-1")
        assert isinstance(reply, Immediate)
        assert reply.headers["x-request-id"] == "3f-1"
        assert json.loads(reply.body)["request_id"] == "3f-1"

    def test_has_the_name_that_anthropics_clients_read(self) -> None:
        (reply,) = Peer().headers("/v1/messages", "GET", x_request_id="3f-1")
        assert isinstance(reply, Immediate)
        assert reply.headers["request-id"] == reply.headers["x-request-id"] == "3f-1"

    def test_is_in_the_list_of_models(self) -> None:
        (reply,) = Peer().headers("/v1/models", "GET", x_request_id="3f-1")
        assert isinstance(reply, Immediate)
        assert reply.headers["x-request-id"] == "3f-1"

    def test_is_not_invented(self) -> None:
        (reply,) = Peer().headers("/")
        assert isinstance(reply, Immediate)
        assert set(reply.headers) == {"content-type"}
        assert set(json.loads(reply.body)) == {"error"}

    def test_is_kept_for_the_log(self) -> None:
        peer = Peer(LLAMA)
        peer.headers(RESPONSE, "GET", x_request_id="3f-1")
        assert peer.conversation.request_id == "3f-1"


class TestPassingUnknownPath:
    @pytest.mark.parametrize("mode", EVERY_MODE)
    @pytest.mark.parametrize("end", [True, False])
    def test_passes_undecided_in_every_mode(self, mode: BodyMode, end: bool) -> None:
        peer = Peer(mode=mode, pass_unknown=True)
        assert peer.headers("/app", "GET", end=end) == (Proceed(Kind.REQUEST_HEADERS),)
        assert peer.conversation.verdict == Passed()

    @pytest.mark.parametrize("mode", [m for m in BodyMode if m is not BodyMode.DUPLEX])
    def test_gets_a_reply_for_each_part_of_its_body(self, mode: BodyMode) -> None:
        peer = Peer(mode=mode, pass_unknown=True)
        peer.headers("/upload")
        for end in (False, False, True):
            assert peer.body(b"x" * 100_000, end=end) == (Proceed(Kind.REQUEST_BODY),)
        trailers = peer.send(Event(Kind.REQUEST_TRAILERS))
        assert trailers == (Proceed(Kind.REQUEST_TRAILERS),)

    def test_gets_its_body_streamed_back(self) -> None:
        peer = Peer(mode=BodyMode.DUPLEX, pass_unknown=True)
        peer.headers("/upload")
        pieces = [*peer.body(b"x" * 100_000, end=False), *peer.body(b"y", end=True)]
        assert all(isinstance(piece, Chunk) for piece in pieces)
        assert b"".join(p.body for p in pieces if isinstance(p, Chunk)) == b"x" * 100_000 + b"y"
        assert [p.end_of_stream for p in pieces if isinstance(p, Chunk)] == [False, False, True]

    def test_loses_the_routing_headers(self) -> None:
        peer = Peer(pass_unknown=True)
        named = {name.replace("-", "_"): "6.6.6.6:6666" for name in ROUTING_HEADERS}
        (reply,) = peer.headers("/app", "GET", end=True, **named)
        assert reply == Proceed(Kind.REQUEST_HEADERS, reroute=True, remove_headers=ROUTING_HEADERS)

    def test_can_show_its_response(self) -> None:
        peer = Peer(pass_unknown=True)
        peer.headers("/app", "GET", end=True)
        for kind in (Kind.RESPONSE_HEADERS, Kind.RESPONSE_BODY, Kind.RESPONSE_TRAILERS):
            assert peer.send(Event(kind)) == (Proceed(kind),)
        peer.conversation.close()
        assert peer.conversation.verdict == Passed()

    def test_leaves_known_paths_unchanged(self) -> None:
        peer = Peer(pass_unknown=True)
        peer.headers("/v1/chat/completions")
        assert refused(peer.body(b"[]"))[0] == 400
        assert isinstance(peer.conversation.verdict, InvalidRequest)
