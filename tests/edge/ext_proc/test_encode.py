"""Encoding of replies, as an independent implementation reads them."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest
import xxhash
from envoy_data_plane.envoy.extensions.filters.http.ext_proc.v3 import (
    ProcessingMode,
    ProcessingModeBodySendMode,
    ProcessingModeHeaderSendMode,
)
from envoy_data_plane.envoy.service.ext_proc.v3 import (
    ProcessingResponse,
)

from extproc.core.conversation.events import Chunk, Immediate, Kind, Proceed
from extproc.core.request.refusals import NoEndpoints
from extproc.core.routing.decision import Decision
from extproc.core.strategies import Prediction
from extproc.edge.ext_proc.codec import encode
from tests.core.builders import model_spec, router
from tests.edge.envoy import (
    Reply,
)

Mode = ProcessingModeBodySendMode


def decision(*addresses: str, prompt: str = "hello", adapter: bool = False) -> Decision:
    spec = model_spec(endpoints=addresses or ("10.0.0.1:8000", "10.0.0.2:8000"), adapters=["sql"])
    serving = router(spec)
    return serving.decide(serving.resolve("sql" if adapter else "llama", {"prompt": prompt}, {}))


class TestProvisionalReply:
    reply = Reply(encode(Proceed(Kind.REQUEST_HEADERS, "10.0.0.1:8000", reroute=True)))

    def test_sets_the_target_and_clears_the_route_cache(self) -> None:
        assert self.reply.kind == "request_headers"
        assert self.reply.headers == {"x-target-endpoint": "10.0.0.1:8000"}
        assert self.reply.rerouted

    def test_removes_a_fallback_and_a_destination_that_a_client_sent(self) -> None:
        assert self.reply.mutation.remove_headers == [
            "x-target-endpoint-fallback",
            "x-gateway-destination-endpoint",
        ]

    def test_names_the_destination_and_the_model(self) -> None:
        answer = Proceed(
            Kind.REQUEST_HEADERS,
            "10.0.0.1:8000",
            reroute=True,
            destination="10.0.0.1:8000",
            requested="sql",
            model="llama",
        )
        assert Reply(encode(answer)).headers == {
            "x-target-endpoint": "10.0.0.1:8000",
            "x-gateway-destination-endpoint": "10.0.0.1:8000",
            "x-gateway-model-name": "sql",
            "x-gateway-base-model-name": "llama",
        }

    def test_keeps_the_clients_model_headers_while_the_model_is_unknown(self) -> None:
        assert b"model-name" not in encode(Proceed(Kind.REQUEST_HEADERS, "pending", reroute=True))

    def test_has_the_target_as_metadata_but_no_decision(self) -> None:
        assert self.reply.metadata == {"envoy.lb": {"x-target-endpoint": "10.0.0.1:8000"}}


class TestReplyWithTheWholeBody:
    def test_replaces_the_body_and_the_headers_at_once(self) -> None:
        proceed = Proceed(Kind.REQUEST_HEADERS, "10.0.0.1:8000", reroute=True, whole_body=b"{}")
        reply = Reply(encode(proceed))
        assert reply.kind == "request_headers"
        assert reply.replaces
        assert reply.rerouted
        assert reply.body == b"{}"
        assert reply.headers == {"x-target-endpoint": "10.0.0.1:8000"}

    def test_can_be_empty(self) -> None:
        reply = Reply(encode(Proceed(Kind.REQUEST_HEADERS, "10.0.0.1:8000", whole_body=b"")))
        assert (reply.replaces, reply.body) == (True, b"")

    def test_is_not_the_usual_one(self) -> None:
        assert not Reply(encode(Proceed(Kind.REQUEST_HEADERS, "10.0.0.1:8000"))).replaces


class TestReplyWithDecision:
    def reply(self, decision: Decision) -> Reply:
        answer = Proceed(
            Kind.REQUEST_BODY,
            decision.address,
            decision=decision,
            destination=decision.address,
        )
        return Reply(encode(answer))

    def test_sets_the_target_and_the_fallback_in_headers_and_metadata(self) -> None:
        decided = decision()
        reply = self.reply(decided)
        targets = {
            "x-target-endpoint": decided.address,
            "x-target-endpoint-fallback": str(decided.fallback),
            "x-gateway-destination-endpoint": decided.address,
        }
        assert reply.kind == "request_body"
        assert reply.headers == targets
        assert reply.metadata["envoy.lb"] == targets
        assert reply.mutation.remove_headers == []
        assert not reply.rerouted

    def test_removes_a_clients_fallback_if_there_is_no_other_endpoint(self) -> None:
        reply = self.reply(decision("10.0.0.1:8000"))
        targets = {
            "x-target-endpoint": "10.0.0.1:8000",
            "x-gateway-destination-endpoint": "10.0.0.1:8000",
        }
        assert reply.headers == targets
        assert reply.mutation.remove_headers == ["x-target-endpoint-fallback"]
        assert reply.metadata["envoy.lb"] == targets

    def test_has_the_decision_and_its_reason_in_metadata(self) -> None:
        decided = decision(adapter=True)
        metadata = self.reply(decided).metadata["extproc"]
        assert metadata == {
            "model": "llama",
            "adapter": "sql",
            "strategy": "PrefixHash",
            "endpoint": decided.address,
            "reason": "prefix",
            "prefix_hash": f"{decided.key:016x}",
            "inflight": 0.0,
            "candidates": 2.0,
            "hops": 0.0,
        }

    def test_writes_the_hash_with_all_its_digits(self) -> None:
        small = next(str(i) for i in count() if xxhash.xxh64_intdigest(str(i).encode()) < 2**60)
        prefix_hash = str(self.reply(decision(prompt=small)).metadata["extproc"]["prefix_hash"])
        assert len(prefix_hash) == 16
        assert int(prefix_hash, 16) == xxhash.xxh64_intdigest(small.encode())

    def test_has_no_hash_without_a_prefix(self) -> None:
        assert "prefix_hash" not in self.reply(decision(prompt="")).metadata["extproc"]

    @pytest.mark.parametrize(
        ("cached", "hit"), [(0.0, 0.0), (100.0, 0.3333), (299.99, 1.0), (300.0, 1.0)]
    )
    def test_has_the_predicted_hit(self, cached: float, hit: float) -> None:
        decided = decision()._replace(prediction=Prediction(300.0, cached))
        assert self.reply(decided).metadata["extproc"]["predicted_hit"] == hit

    def test_has_no_predicted_hit_without_a_prediction(self) -> None:
        assert "predicted_hit" not in self.reply(decision()).metadata["extproc"]

    def test_to_headers_clears_the_route_cache(self) -> None:
        decided = decision()
        answer = Proceed(Kind.REQUEST_HEADERS, decided.address, reroute=True, decision=decided)
        reply = Reply(encode(answer))
        assert reply.kind == "request_headers"
        assert reply.rerouted
        assert reply.metadata["extproc"]["endpoint"] == decided.address

    def test_has_the_endpoint_picker_protocols_list(self) -> None:
        decided = decision()
        answer = Proceed(
            Kind.REQUEST_HEADERS,
            decided.address,
            reroute=True,
            decision=decided,
            destination=decided.destination,
        )
        reply = Reply(encode(answer))
        key = "x-gateway-destination-endpoint"
        assert reply.headers[key] == f"{decided.address},{decided.fallback}"
        assert reply.metadata["envoy.lb"][key] == reply.headers[key]
        assert reply.headers["x-target-endpoint"] == decided.address


class TestReplyWithBody:
    def reply(self, **changes: Any) -> Reply:
        decided = decision()
        answer = Proceed(Kind.REQUEST_BODY, decided.address, decision=decided)
        return Reply(encode(answer._replace(**changes)))

    def test_replaces_the_body(self) -> None:
        assert self.reply(body=b"\x00{").body == b"\x00{"

    def test_has_no_body_if_nothing_changes(self) -> None:
        assert self.reply().body is None

    def test_sets_and_removes_other_headers(self) -> None:
        reply = self.reply(set_headers=(("content-length", "7"), ("x", "é")), remove_headers=("y",))
        plain = self.reply()
        assert reply.headers == {**plain.headers, "content-length": "7", "x": "é"}
        assert reply.mutation.remove_headers == [*plain.mutation.remove_headers, "y"]


@pytest.mark.parametrize("reroute", [True, False])
def test_reply_to_request_headers_without_target_removes_headers(reroute: bool) -> None:
    names = ("x-target-endpoint", "y")
    reply = Reply(encode(Proceed(Kind.REQUEST_HEADERS, reroute=reroute, remove_headers=names)))
    assert reply.kind == "request_headers"
    assert (reply.headers, reply.mutation.remove_headers) == ({}, list(names))
    assert reply.rerouted is reroute
    assert reply.metadata == {}


def test_reply_to_response_headers_removes_headers() -> None:
    reply = Reply(encode(Proceed(Kind.RESPONSE_HEADERS, remove_headers=("x", "y"))))
    assert reply.kind == "response_headers"
    assert (reply.headers, reply.mutation.remove_headers) == ({}, ["x", "y"])


@pytest.mark.parametrize("kind", [Kind.REQUEST_BODY, Kind.RESPONSE_BODY])
@pytest.mark.parametrize("end", [True, False])
@pytest.mark.parametrize("body", [b"", b"\x00\xff{"])
def test_chunk_of_a_body_is_sent_back_unchanged(kind: Kind, end: bool, body: bytes) -> None:
    reply = Reply(encode(Chunk(kind, body, end)))
    assert reply.kind == kind.name.lower()
    assert (reply.streamed.body, reply.streamed.end_of_stream) == (body, end)
    assert reply.metadata == {}


@pytest.mark.parametrize("kind", [kind for kind in Kind if kind is not Kind.UNKNOWN])
def test_empty_reply_of_the_same_kind_changes_nothing(kind: Kind) -> None:
    raw = encode(Proceed(kind))
    assert Reply(raw).kind == kind.name.lower()
    # A tag and an empty message.
    assert (len(raw), raw[1:]) == (2, b"\x00")


def test_immediate_response_has_status_headers_body_and_details() -> None:
    refusal = NoEndpoints("llama")
    answer = Immediate(refusal.status, refusal.headers, refusal.body(), refusal.code)
    reply = Reply(encode(answer))
    immediate = reply.message.immediate_response
    assert reply.kind == "immediate_response"
    assert immediate is not None
    assert reply.error == (503, "no_endpoints")
    assert reply.headers == {"content-type": "application/json", "retry-after": "2"}
    assert immediate.body == refusal.body()
    assert immediate.details == "no_endpoints"
    assert reply.metadata == {}


@pytest.mark.parametrize("status", [200, 400, 404, 500, 503])
def test_envoy_knows_every_status_that_is_sent(status: int) -> None:
    reply = Reply(encode(Immediate(status, {}, b'{"error": {"code": "x"}}', "x")))
    assert reply.error == (status, "x")


class TestReplyToResponse:
    def test_can_request_the_body_of_this_response(self) -> None:
        answer = Proceed(
            Kind.RESPONSE_HEADERS, remove_headers=("content-length",), show_response=True
        )
        message = ProcessingResponse.parse(encode(answer))
        assert message.mode_override == ProcessingMode(
            request_header_mode=ProcessingModeHeaderSendMode.SEND,
            response_header_mode=ProcessingModeHeaderSendMode.SEND,
            response_body_mode=Mode.STREAMED,
            response_trailer_mode=ProcessingModeHeaderSendMode.SEND,
        )
        assert Reply(encode(answer)).mutation.remove_headers == ["content-length"]

    def test_keeps_the_modes_otherwise(self) -> None:
        for answer in (
            Proceed(Kind.RESPONSE_HEADERS),
            Proceed(Kind.RESPONSE_HEADERS, remove_headers=("x",)),
        ):
            assert ProcessingResponse.parse(encode(answer)).mode_override is None

    def test_can_replace_a_part_of_the_body(self) -> None:
        reply = Reply(encode(Proceed(Kind.RESPONSE_BODY, body=b"")))
        assert (reply.kind, reply.body) == ("response_body", b"")
        assert Reply(encode(Proceed(Kind.RESPONSE_BODY))).body is None
