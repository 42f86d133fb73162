"""Decoding of Envoy's messages."""

from __future__ import annotations

import pytest
from envoy_data_plane.envoy.config.core.v3 import HeaderMap, HeaderValue
from envoy_data_plane.envoy.extensions.filters.http.ext_proc.v3 import (
    ProcessingModeBodySendMode,
)
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

from extproc.core.conversation.events import BodyMode, Event, Kind, Modes
from extproc.core.fleet.outcome import Outcome
from extproc.edge.ext_proc.codec import decode
from tests.edge.envoy import (
    Hint,
    headers_without_path,
    request_body,
    request_headers,
    response_body,
    response_headers,
)
from tests.extent import extent

Mode = ProcessingModeBodySendMode


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

    @settings(max_examples=extent(40, 300))
    @given(st.binary())
    @example(request_headers()[:-1])
    def test_reads_or_refuses_any_bytes(self, message: bytes) -> None:
        try:
            event = decode(message)
        except DecodeError:
            return
        assert isinstance(event.kind, Kind)
