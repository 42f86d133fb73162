from __future__ import annotations

from itertools import count

import pytest
import xxhash
from envoy_data_plane.envoy.config.core.v3 import HeaderMap, HeaderValue
from envoy_data_plane.envoy.extensions.filters.http.ext_proc.v3 import ProcessingModeBodySendMode
from envoy_data_plane.envoy.service.ext_proc.v3 import (
    HttpBody,
    HttpHeaders,
    HttpTrailers,
    ProcessingRequest,
    ProtocolConfiguration,
)
from google.protobuf.message import DecodeError
from hypothesis import example, given, settings
from hypothesis import strategies as st

from extproc.core.conversation import BodyMode, Event, Immediate, Kind, Proceed
from extproc.core.errors import NoEndpoints
from extproc.core.router import Decision
from extproc.edge.codec import decode, encode
from tests.core.builders import model_spec, router
from tests.edge.envoy import Reply, request_body, request_headers, response_headers

Mode = ProcessingModeBodySendMode


def decision(*addresses: str, prompt: str = "hello", adapter: bool = False) -> Decision:
    spec = model_spec(endpoints=addresses or ("10.0.0.1:8000", "10.0.0.2:8000"), adapters=["sql"])
    serving = router(spec)
    return serving.decide(serving.place("sql" if adapter else "llama", {"prompt": prompt}, {}))


class TestAMessageOfEnvoy:
    def test_with_request_headers_is_read(self) -> None:
        event = decode(request_headers("/v1/x?y=z", end=True, x_model=b"llama"))
        assert event == Event(
            Kind.REQUEST_HEADERS,
            headers={":method": b"POST", ":path": b"/v1/x?y=z", "x-model": b"llama"},
            end_of_stream=True,
        )

    def test_may_hold_header_values_that_are_no_utf8(self) -> None:
        assert decode(request_headers(x_raw=b"\xff\x00")).headers["x-raw"] == b"\xff\x00"

    def test_may_hold_header_values_as_text(self) -> None:
        headers = HeaderMap([HeaderValue(key=":path", value="/世"), HeaderValue(key="x")])
        message = ProcessingRequest(request_headers=HttpHeaders(headers=headers))
        assert decode(bytes(message)).headers == {":path": "/世".encode(), "x": b""}

    @pytest.mark.parametrize(
        ("mode", "read"),
        [
            (None, BodyMode.BUFFERED),
            (Mode.NONE, BodyMode.NONE),
            (Mode.BUFFERED, BodyMode.BUFFERED),
            (Mode.BUFFERED_PARTIAL, BodyMode.BUFFERED),
            (Mode.STREAMED, BodyMode.OTHER),
            (Mode.FULL_DUPLEX_STREAMED, BodyMode.OTHER),
            (Mode.GRPC, BodyMode.OTHER),
        ],
    )
    def test_tells_how_the_body_will_come(self, mode: Mode | None, read: BodyMode) -> None:
        assert decode(request_headers(mode=mode)).body_mode is read

    def test_with_an_unheard_of_body_mode_is_one_of_the_others(self) -> None:
        config = ProtocolConfiguration(request_body_mode=Mode(99))
        message = ProcessingRequest(request_headers=HttpHeaders(), protocol_config=config)
        assert decode(bytes(message)).body_mode is BodyMode.OTHER

    @pytest.mark.parametrize("end", [True, False])
    def test_with_a_body_is_read(self, end: bool) -> None:
        event = decode(request_body(b"\x00\xff{", end=end))
        assert event == Event(Kind.REQUEST_BODY, body=b"\x00\xff{", end_of_stream=end)

    @pytest.mark.parametrize(
        ("message", "kind"),
        [
            (ProcessingRequest(request_trailers=HttpTrailers()), Kind.REQUEST_TRAILERS),
            (ProcessingRequest(response_headers=HttpHeaders()), Kind.RESPONSE_HEADERS),
            (ProcessingRequest(response_body=HttpBody(body=b"x")), Kind.RESPONSE_BODY),
            (ProcessingRequest(response_trailers=HttpTrailers()), Kind.RESPONSE_TRAILERS),
        ],
    )
    def test_of_a_later_kind_is_known_by_its_kind(
        self, message: ProcessingRequest, kind: Kind
    ) -> None:
        assert decode(bytes(message)) == Event(kind)

    @pytest.mark.parametrize(
        ("attributes", "served_by"),
        [
            (None, ""),
            ({}, ""),
            ({"upstream.address": "10.0.0.2:8000"}, "10.0.0.2:8000"),
            ({"upstream.host": "10.0.0.2:8000"}, ""),
        ],
    )
    def test_may_tell_who_answered(self, attributes: dict[str, str] | None, served_by: str) -> None:
        event = decode(response_headers(attributes))
        assert event == Event(Kind.RESPONSE_HEADERS, served_by=served_by)

    @pytest.mark.parametrize(
        "message",
        [
            pytest.param(b"", id="empty"),
            pytest.param(b"\xa2\x06\x00", id="a field to come"),
            pytest.param(bytes(ProcessingRequest(observability_mode=True)), id="no event"),
        ],
    )
    def test_without_an_event_that_we_know_is_unknown(self, message: bytes) -> None:
        assert decode(message) == Event(Kind.UNKNOWN)

    def test_with_fields_to_come_is_read_for_what_we_know(self) -> None:
        assert decode(request_body(b"x") + b"\xa2\x06\x00").body == b"x"

    @pytest.mark.parametrize("message", [b"\xff", b"garbage", b"\x12\x7f", b"\x08"])
    def test_that_is_none_is_refused(self, message: bytes) -> None:
        with pytest.raises(DecodeError):
            decode(message)

    @settings(max_examples=300, deadline=None)
    @given(st.binary())
    @example(request_headers()[:-1])
    def test_that_is_any_bytes_is_read_or_refused(self, message: bytes) -> None:
        try:
            event = decode(message)
        except DecodeError:
            return
        assert isinstance(event.kind, Kind)


class TestTheAnswerToTheHeaders:
    reply = Reply(encode(Proceed(Kind.REQUEST_HEADERS, "10.0.0.1:8000", reroute=True)))

    def test_sets_the_target_and_routes_again(self) -> None:
        assert self.reply.kind == "request_headers"
        assert self.reply.headers == {"x-target-endpoint": "10.0.0.1:8000"}
        assert self.reply.rerouted

    def test_takes_a_fallback_that_a_client_sent_away(self) -> None:
        assert self.reply.mutation.remove_headers == ["x-target-endpoint-fallback"]

    def test_has_the_target_as_metadata_but_no_decision(self) -> None:
        assert self.reply.metadata == {"envoy.lb": {"x-target-endpoint": "10.0.0.1:8000"}}


class TestTheAnswerWithADecision:
    def reply(self, decision: Decision) -> Reply:
        return Reply(encode(Proceed(Kind.REQUEST_BODY, decision.address, decision=decision)))

    def test_sets_the_target_and_the_fallback_in_headers_and_metadata(self) -> None:
        decided = decision()
        reply = self.reply(decided)
        targets = {
            "x-target-endpoint": decided.address,
            "x-target-endpoint-fallback": str(decided.fallback),
        }
        assert reply.kind == "request_body"
        assert reply.headers == targets
        assert reply.metadata["envoy.lb"] == targets
        assert reply.mutation.remove_headers == []
        assert not reply.rerouted

    def test_without_another_endpoint_takes_a_clients_fallback_away(self) -> None:
        reply = self.reply(decision("10.0.0.1:8000"))
        assert reply.headers == {"x-target-endpoint": "10.0.0.1:8000"}
        assert reply.mutation.remove_headers == ["x-target-endpoint-fallback"]
        assert reply.metadata["envoy.lb"] == {"x-target-endpoint": "10.0.0.1:8000"}

    def test_tells_what_was_decided_and_why(self) -> None:
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

    def test_has_no_hash_where_there_was_no_prefix(self) -> None:
        assert "prefix_hash" not in self.reply(decision(prompt="")).metadata["extproc"]

    def test_in_the_answer_to_the_headers_routes_again(self) -> None:
        decided = decision()
        answer = Proceed(Kind.REQUEST_HEADERS, decided.address, reroute=True, decision=decided)
        reply = Reply(encode(answer))
        assert reply.kind == "request_headers"
        assert reply.rerouted
        assert reply.metadata["extproc"]["endpoint"] == decided.address


@pytest.mark.parametrize("kind", [kind for kind in Kind if kind is not Kind.UNKNOWN])
def test_going_on_is_an_answer_of_the_same_kind_that_changes_nothing(kind: Kind) -> None:
    raw = encode(Proceed(kind))
    assert Reply(raw).kind == kind.name.lower()
    # A tag and an empty message.
    assert (len(raw), raw[1:]) == (2, b"\x00")


def test_an_immediate_response_carries_status_headers_body_and_details() -> None:
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
def test_every_status_we_send_is_one_that_envoy_knows(status: int) -> None:
    reply = Reply(encode(Immediate(status, {}, b'{"error": {"code": "x"}}', "x")))
    assert reply.error == (status, "x")
