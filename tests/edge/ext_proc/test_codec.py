from __future__ import annotations

from itertools import count
from typing import Any

import pytest
import xxhash
from envoy_data_plane.envoy.config.core.v3 import HeaderMap, HeaderValue
from envoy_data_plane.envoy.extensions.filters.http.ext_proc.v3 import (
    ProcessingMode,
    ProcessingModeBodySendMode,
    ProcessingModeHeaderSendMode,
)
from envoy_data_plane.envoy.service.ext_proc.v3 import (
    HttpBody,
    HttpHeaders,
    HttpTrailers,
    ProcessingRequest,
    ProcessingResponse,
    ProtocolConfiguration,
)
from google.protobuf.message import DecodeError
from hypothesis import example, given, settings
from hypothesis import strategies as st

from extproc.core.conversation.events import BodyMode, Chunk, Event, Immediate, Kind, Modes, Proceed
from extproc.core.fleet.outcome import Outcome
from extproc.core.request.refusals import NoEndpoints
from extproc.core.routing.decision import Decision
from extproc.core.strategies import Prediction
from extproc.edge.ext_proc.codec import decode, encode
from tests.core.builders import model_spec, router
from tests.edge.envoy import (
    Hint,
    Reply,
    headers_without_path,
    request_body,
    request_headers,
    response_body,
    response_headers,
)
from tests.extent import extent

Mode = ProcessingModeBodySendMode


def decision(*addresses: str, prompt: str = "hello", adapter: bool = False) -> Decision:
    spec = model_spec(endpoints=addresses or ("10.0.0.1:8000", "10.0.0.2:8000"), adapters=["sql"])
    serving = router(spec)
    return serving.decide(serving.resolve("sql" if adapter else "llama", {"prompt": prompt}, {}))


class TestDecode:
    def test_reads_request_headers(self) -> None:
        event = decode(request_headers("/v1/x?y=z", end=True, x_model=b"llama"))
        assert event == Event(
            Kind.REQUEST_HEADERS,
            headers={":method": b"POST", ":path": b"/v1/x?y=z", "x-model": b"llama"},
            end_of_stream=True,
            modes=Modes(BodyMode.BUFFERED, BodyMode.NONE),
        )

    def test_keeps_header_values_that_are_not_utf8(self) -> None:
        assert decode(request_headers(x_raw=b"\xff\x00")).headers["x-raw"] == b"\xff\x00"

    def test_reads_header_values_in_the_text_field(self) -> None:
        headers = HeaderMap([HeaderValue(key=":path", value="/世"), HeaderValue(key="x")])
        message = ProcessingRequest(request_headers=HttpHeaders(headers=headers))
        assert decode(bytes(message)).headers == {":path": "/世".encode(), "x": b""}

    def test_reads_headers_without_path_and_modes(self) -> None:
        assert decode(headers_without_path(x_session="7")) == Event(
            Kind.REQUEST_HEADERS,
            headers={
                "host": b"llm",
                "content-type": b"application/json",
                "user-agent": b"curl/8",
                "x-session": b"7",
            },
        )

    @pytest.mark.parametrize(
        ("mode", "read"),
        [
            (Mode.NONE, BodyMode.NONE),
            (Mode.BUFFERED, BodyMode.BUFFERED),
            (Mode.BUFFERED_PARTIAL, BodyMode.BUFFERED),
            (Mode.STREAMED, BodyMode.OTHER),
            (Mode.FULL_DUPLEX_STREAMED, BodyMode.DUPLEX),
            (Mode.GRPC, BodyMode.OTHER),
            (Mode(99), BodyMode.OTHER),
        ],
    )
    def test_reads_the_body_modes(self, mode: Mode, read: BodyMode) -> None:
        assert decode(request_headers(mode=mode)).modes == Modes(read, BodyMode.NONE)
        event = decode(request_headers(mode=Mode.NONE, response_mode=mode))
        assert event.modes == Modes(BodyMode.NONE, read)

    @pytest.mark.parametrize("mode", [Mode.STREAMED, Mode.BUFFERED, Mode.FULL_DUPLEX_STREAMED])
    def test_reads_if_a_streamed_body_comes_ahead(self, mode: Mode) -> None:
        waiting = decode(request_headers(mode=mode)).modes
        ahead = decode(request_headers(mode=mode, ahead=True)).modes
        assert ahead == (Modes(BodyMode.AHEAD) if mode is Mode.STREAMED else waiting)

    def test_later_messages_have_no_modes(self) -> None:
        assert decode(request_headers(mode=None)).modes is None
        assert decode(request_body(b"x")).modes is None

    @pytest.mark.parametrize(
        "message",
        [
            ProcessingRequest(request_body=HttpBody()),
            ProcessingRequest(request_trailers=HttpTrailers()),
            ProcessingRequest(response_headers=HttpHeaders()),
            ProcessingRequest(response_body=HttpBody()),
        ],
    )
    def test_first_message_of_any_kind_has_modes(self, message: ProcessingRequest) -> None:
        message.protocol_config = ProtocolConfiguration(
            request_body_mode=Mode.NONE, response_body_mode=Mode.FULL_DUPLEX_STREAMED
        )
        assert decode(bytes(message)).modes == Modes(BodyMode.NONE, BodyMode.DUPLEX)

    @pytest.mark.parametrize(
        ("hint", "subset"),
        [
            ("10.0.0.1:8000", ("10.0.0.1:8000",)),
            ("10.0.0.1:8000,[::1]:8000", ("10.0.0.1:8000,[::1]:8000",)),
            (["10.0.0.1:8000, 10.0.0.2:8000"], ("10.0.0.1:8000, 10.0.0.2:8000",)),
            (["10.0.0.1:8000", "10.0.0.2"], ("10.0.0.1:8000", "10.0.0.2")),
            ([], ()),
            ("", ("",)),
            (7.0, ("",)),
            (None, ("",)),
        ],
    )
    def test_reads_the_subset_hint_with_headers(self, hint: Hint, subset: tuple[str, ...]) -> None:
        hints = {"x-gateway-destination-endpoint-subset": hint, "other": "x"}
        event = decode(request_headers(metadata={"envoy.lb.subset_hint": hints}))
        assert event.subset == subset

    def test_reads_the_subset_hint_with_the_body(self) -> None:
        hints: dict[str, Hint] = {"x-gateway-destination-endpoint-subset": ["10.0.0.1:8000"]}
        message = ProcessingRequest.parse(request_body(b"{}"))
        told = ProcessingRequest.parse(request_headers(metadata={"envoy.lb.subset_hint": hints}))
        message.metadata_context = told.metadata_context
        assert decode(bytes(message)).subset == ("10.0.0.1:8000",)
        assert decode(request_body(b"{}")).subset is None

    @pytest.mark.parametrize(
        "metadata",
        [
            None,
            {},
            {"envoy.lb.subset_hint": {}},
            {"envoy.lb.subset_hint": {"other": "10.0.0.1:8000"}},
            {"envoy.lb": {"x-gateway-destination-endpoint-subset": "10.0.0.1:8000"}},
        ],
    )
    def test_no_subset_hint_allows_all_endpoints(
        self, metadata: dict[str, dict[str, Hint]]
    ) -> None:
        assert decode(request_headers(metadata=metadata)).subset is None

    @pytest.mark.parametrize("end", [True, False])
    def test_reads_a_body(self, end: bool) -> None:
        event = decode(request_body(b"\x00\xff{", end=end))
        assert event == Event(Kind.REQUEST_BODY, body=b"\x00\xff{", end_of_stream=end)

    @pytest.mark.parametrize(
        ("message", "kind"),
        [
            (ProcessingRequest(request_trailers=HttpTrailers()), Kind.REQUEST_TRAILERS),
            (ProcessingRequest(response_headers=HttpHeaders()), Kind.RESPONSE_HEADERS),
            (ProcessingRequest(response_body=HttpBody()), Kind.RESPONSE_BODY),
            (ProcessingRequest(response_trailers=HttpTrailers()), Kind.RESPONSE_TRAILERS),
        ],
    )
    def test_reads_the_kind_of_later_messages(self, message: ProcessingRequest, kind: Kind) -> None:
        assert decode(bytes(message)) == Event(kind)

    @pytest.mark.parametrize("end", [True, False])
    def test_reads_a_part_of_a_response_body(self, end: bool) -> None:
        event = decode(response_body(b"data: {}\n\n", end=end))
        assert event == Event(Kind.RESPONSE_BODY, body=b"data: {}\n\n", end_of_stream=end)

    @pytest.mark.parametrize(
        ("attributes", "served_by"),
        [
            (None, ""),
            ({}, ""),
            ({"upstream.address": "10.0.0.2:8000"}, "10.0.0.2:8000"),
            ({"upstream.host": "10.0.0.2:8000"}, ""),
        ],
    )
    def test_reads_the_upstream_address(
        self, attributes: dict[str, str] | None, served_by: str
    ) -> None:
        event = decode(response_headers(attributes))
        assert event == Event(Kind.RESPONSE_HEADERS, served_by=served_by, outcome=Outcome.SERVED)

    @pytest.mark.parametrize("attributes", [None, {"upstream.address": "10.0.0.1:8000"}])
    def test_reads_the_endpoint_picker_protocols_served_endpoint(
        self, attributes: dict[str, str] | None
    ) -> None:
        served: dict[str, Hint] = {"x-gateway-destination-endpoint-served": "10.0.0.2:8000"}
        event = decode(response_headers(attributes, {"envoy.lb": served}))
        assert event.served_by == "10.0.0.2:8000"
        other = decode(response_headers(attributes, {"envoy.lb": {"other": "x"}}))
        assert other.served_by == ("10.0.0.1:8000" if attributes else "")

    @pytest.mark.parametrize(
        ("status", "attributes", "outcome"),
        [
            (b"200", None, Outcome.SERVED),
            (b"404", {}, Outcome.SERVED),
            (b"503", {"upstream.address": "10.0.0.2:8000"}, Outcome.ERROR),
            (b"503", {"response.code_details": "via_upstream"}, Outcome.ERROR),
            (b"504", {"response.code_details": "upstream_per_try_timeout"}, Outcome.TIMEOUT),
            (b"503", {"response.code_details": "something_else"}, None),
            (b"", {}, None),
            (b"5xx", {}, None),
            (b"\xff00", {}, None),
            (b"1" * 5000, {}, None),
        ],
    )
    def test_reads_the_outcome(
        self, status: bytes, attributes: dict[str, str] | None, outcome: Outcome | None
    ) -> None:
        assert decode(response_headers(attributes, status=status)).outcome is outcome

    @pytest.mark.parametrize(
        ("attempts", "known"), [(2, 2), (0, 0), (float("nan"), 0), (float("inf"), 0), ("2", 0)]
    )
    def test_reads_the_number_of_attempts(self, attempts: float | str, known: int) -> None:
        event = decode(response_headers({"upstream.request_attempt_count": attempts}))
        assert event.attempts == known

    def test_reads_a_load_report(self) -> None:
        message = response_headers(
            {"upstream.address": "10.0.0.2:8000"},
            endpoint_load_metrics=b"TEXT a=1",
            endpoint_load_metrics_format=b"TEXT",
            server=b"uvicorn",
        )
        assert decode(message) == Event(
            Kind.RESPONSE_HEADERS,
            served_by="10.0.0.2:8000",
            outcome=Outcome.SERVED,
            load_report=b"TEXT a=1",
        )

    def test_reads_a_load_report_in_the_text_field(self) -> None:
        headers = HeaderMap([HeaderValue(key="endpoint-load-metrics", value="TEXT a=1")])
        message = ProcessingRequest(response_headers=HttpHeaders(headers=headers))
        assert decode(bytes(message)).load_report == b"TEXT a=1"

    def test_empty_load_report_differs_from_none(self) -> None:
        assert decode(response_headers(endpoint_load_metrics=b"")).load_report == b""
        assert decode(response_headers(server=b"uvicorn")).load_report is None

    @pytest.mark.parametrize(
        ("headers", "media_type"),
        [
            ({"content_type": b"application/json"}, "application/json"),
            ({"content_type": b"Text/Event-Stream; charset=utf-8"}, "text/event-stream"),
            ({"content_type": b"application/json", "content_encoding": b"gzip"}, ""),
            ({"content_type": b"application/json", "content_encoding": b"identity"}, None),
            ({"content_type": b"\xff"}, "\xff"),
            ({}, ""),
        ],
    )
    def test_reads_the_media_type_of_an_uncompressed_body(
        self, headers: dict[str, bytes], media_type: str | None
    ) -> None:
        read = decode(response_headers(None, None, **headers)).media_type
        assert read == ("application/json" if media_type is None else media_type)

    @pytest.mark.parametrize(
        "message",
        [
            pytest.param(b"", id="empty"),
            pytest.param(b"\xa2\x06\x00", id="a field to come"),
            pytest.param(bytes(ProcessingRequest(observability_mode=True)), id="no event"),
        ],
    )
    def test_unknown_event_has_kind_unknown(self, message: bytes) -> None:
        assert decode(message) == Event(Kind.UNKNOWN)

    def test_ignores_unknown_fields(self) -> None:
        assert decode(request_body(b"x") + b"\xa2\x06\x00").body == b"x"

    @pytest.mark.parametrize("message", [b"\xff", b"garbage", b"\x12\x7f", b"\x08"])
    def test_refuses_garbled_bytes(self, message: bytes) -> None:
        with pytest.raises(DecodeError):
            decode(message)

    @settings(max_examples=extent(75, 300))
    @given(st.binary())
    @example(request_headers()[:-1])
    def test_reads_or_refuses_any_bytes(self, message: bytes) -> None:
        try:
            event = decode(message)
        except DecodeError:
            return
        assert isinstance(event.kind, Kind)


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
