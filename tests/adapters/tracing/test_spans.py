"""Spans of decisions, as a real OTLP receiver gets them."""

from __future__ import annotations

import logging
import re
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from random import Random
from subprocess import run
from typing import ClassVar

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.trace import TraceState
from prometheus_client import CollectorRegistry

from extproc.adapters.observability.tracing_metrics import TracingMetrics
from extproc.adapters.tracing import otlp
from extproc.adapters.tracing.endpoint import otlp_endpoint
from extproc.adapters.tracing.exporting import CountedExporter
from extproc.adapters.tracing.otlp import OtlpTracing
from extproc.core.schema import ModelSpec
from extproc.edge.ext_proc.service import ExternalProcessor
from tests.adapters.documents import sample
from tests.adapters.tracing.receiver import Receiver, values
from tests.core.builders import model_spec
from tests.edge.envoy import chat_request, request_body, request_headers
from tests.edge.streams import Sidecar, eventually
from tests.extent import PATIENCE

TRACE, PARENT, ENVOY = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7", "b7ad6b7169203331"
SPANS = "extproc_spans_total"
EXPORTERS = ("OtelBatchSpanRecordProcessor", "last-export")
"""Names of the threads that export spans."""


def parent(span: str = PARENT, flags: str = "01") -> bytes:
    """Return the value of `traceparent`."""
    return f"00-{TRACE}-{span}-{flags}".encode()


class TracedSidecar(Sidecar):
    """A sidecar without a network, whose spans go to a receiver."""

    def __init__(self, url: str, *specs: ModelSpec) -> None:
        super().__init__(*specs)
        self.tracing = OtlpTracing(otlp_endpoint(url), self.telemetry.trace())
        self.processor = ExternalProcessor(
            self.router, self.telemetry, Random(0), tracing=self.tracing
        )

    def route(self, model_name: str = "llama", /, **headers: bytes) -> None:
        message = request_headers(**headers)  # type: ignore[arg-type]
        self.serve(message, request_body(chat_request(model_name)))

    def count(self, result: str) -> float:
        return sample(self.telemetry, SPANS, result=result)


@pytest.fixture(autouse=True)
def _frequent_exports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "10")


@pytest.fixture(autouse=True)
def _no_exporter_outlives_a_test() -> Iterator[None]:
    """Wait for the SDK's threads: they would log in a later test."""
    before = set(threading.enumerate())
    yield
    for thread in set(threading.enumerate()) - before:
        if thread.name in EXPORTERS:
            thread.join(PATIENCE)
            assert not thread.is_alive()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver().listening() as receiver:
        yield receiver


async def only_span(receiver: Receiver) -> Span:
    await eventually(lambda: bool(receiver.spans))
    (span,) = receiver.spans
    return span


async def test_decision_is_a_child_of_the_requests_span(receiver: Receiver) -> None:
    sidecar = TracedSidecar(receiver.url)
    sidecar.route(traceparent=parent(), tracestate=b"vendor=1", x_request_id=b"abc")
    span = await only_span(receiver)
    assert span.name == "route llama"
    assert span.kind == Span.SPAN_KIND_INTERNAL
    assert (span.trace_id.hex(), span.parent_span_id.hex()) == (TRACE, PARENT)
    assert span.trace_state == "vendor=1"
    assert 0 < span.start_time_unix_nano <= span.end_time_unix_nano
    found = values(span.attributes)
    assert found.pop("extproc.endpoint") == f"{found['server.address']}:{found['server.port']}"
    assert found.keys() >= {"extproc.prefix_hash", "extproc.fallback", "extproc.hops"}
    expected = {
        "gen_ai.request.model": "llama",
        "extproc.model": "llama",
        "extproc.strategy": "PrefixHash",
        "extproc.reason": "prefix",
        "extproc.inflight": 0,
        "extproc.candidates": 2,
        "extproc.request_id": "abc",
    }
    assert {name: found.get(name) for name in expected} == expected
    await sidecar.tracing.close()


async def test_process_is_named(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-tenant=blue")
    sidecar = TracedSidecar(receiver.url)
    sidecar.route(traceparent=parent())
    await only_span(receiver)
    assert receiver.resource["service.name"] == "extproc"
    assert receiver.resource["deployment.environment.name"] == "test"
    assert receiver.metadata["x-tenant"] == "blue"
    await sidecar.tracing.close()


async def test_requested_name_may_be_an_alias_or_an_adapter(receiver: Receiver) -> None:
    sidecar = TracedSidecar(receiver.url, model_spec("llama", adapters=["sql"]))
    sidecar.route("sql", traceparent=parent())
    found = values((await only_span(receiver)).attributes)
    assert found["gen_ai.request.model"] == found["extproc.adapter"] == "sql"
    assert found["extproc.model"] == "llama"
    await sidecar.tracing.close()


async def test_refusal_is_an_error_with_its_code(receiver: Receiver) -> None:
    sidecar = TracedSidecar(receiver.url)
    sidecar.route("gpt", traceparent=parent())
    span = await only_span(receiver)
    assert span.name == "route"
    found = values(span.attributes)
    assert found == {"error.type": "model_not_found", "http.response.status_code": 404}
    assert span.status.code == span.status.STATUS_CODE_ERROR
    assert "gpt" in span.status.message
    await sidecar.tracing.close()


async def test_span_of_envoy_is_the_parent_if_envoy_traces(receiver: Receiver) -> None:
    sidecar = TracedSidecar(receiver.url)
    session = sidecar.processor.open(lambda _: None, {b"traceparent": parent(ENVOY)})
    session.receive(request_headers(traceparent=parent(flags="00")))
    session.receive(request_body(chat_request()))
    session.close()
    assert (await only_span(receiver)).parent_span_id.hex() == ENVOY
    await sidecar.tracing.close()


async def test_unsampled_trace_has_no_span(receiver: Receiver) -> None:
    sidecar = TracedSidecar(receiver.url)
    sidecar.route(traceparent=parent(flags="00"))
    sidecar.route(traceparent=parent())
    await only_span(receiver)
    await sidecar.tracing.close()
    assert len(receiver.spans) == sidecar.count("exported") == 1


@pytest.mark.parametrize("headers", [{}, {"traceparent": b"garbage"}])
async def test_request_without_a_trace_begins_one(
    receiver: Receiver, headers: dict[str, bytes]
) -> None:
    sidecar = TracedSidecar(receiver.url)
    sidecar.route(**headers)
    assert (await only_span(receiver)).parent_span_id == b""
    await sidecar.tracing.close()


async def test_operator_chooses_the_sampler_of_requests_without_a_trace(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "parentbased_always_off")
    sidecar = TracedSidecar(receiver.url)
    sidecar.route()
    sidecar.route(traceparent=parent())
    assert (await only_span(receiver)).parent_span_id.hex() == PARENT
    await sidecar.tracing.close()
    assert len(receiver.spans) == 1


async def test_last_spans_are_exported_at_the_end(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "600000")
    monkeypatch.setattr(otlp, "_LAST_EXPORT_SECONDS", PATIENCE)
    sidecar = TracedSidecar(receiver.url)
    sidecar.route(traceparent=parent())
    await sidecar.tracing.close()
    assert len(receiver.spans) == 1


class _Collector(BaseHTTPRequestHandler):
    """Keeps the paths and bodies of the requests that it receives."""

    received: ClassVar[list[tuple[str, bytes]]] = []

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        self.received.append((self.path, body))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Print nothing."""


async def test_spans_are_exported_over_http() -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Collector)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    sidecar = TracedSidecar(f"http://127.0.0.1:{server.server_port}")
    sidecar.route(traceparent=parent())
    await eventually(lambda: sidecar.count("exported") == 1)
    await sidecar.tracing.close()
    server.shutdown()
    ((path, body),) = _Collector.received
    assert path == "/v1/traces"
    request = ExportTraceServiceRequest.FromString(body)
    (span,) = request.resource_spans[0].scope_spans[0].spans
    assert span.parent_span_id.hex() == PARENT


class TestReceiverThatIsDown:
    async def test_is_logged_once_and_counted(
        self, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
        receiver = Receiver()
        sidecar = TracedSidecar(receiver.url)
        with caplog.at_level(logging.INFO):
            for failed in (1, 2, 3):
                sidecar.route(traceparent=parent())
                await eventually(lambda failed=failed: sidecar.count("failed") == failed)  # type: ignore[misc]
            with receiver.listening():

                def recovered() -> bool:
                    sidecar.route(traceparent=parent())
                    return sidecar.count("exported") > 0

                await eventually(recovered)
                await sidecar.tracing.close()
        failed_line, recovered_line = (
            one for one in caplog.records if one.name == "extproc.tracing"
        )
        assert failed_line.message == "spans not exported"
        assert recovered_line.message == "spans exported again"
        # On a busy machine, the time limit of the export may end before the connection is refused.
        assert re.search("UNAVAILABLE|DEADLINE_EXCEEDED", failed_line.fields["why"])  # type: ignore[attr-defined]

    def test_cause_never_quotes_a_client(self, caplog: pytest.LogCaptureFixture) -> None:
        """The SDK logs a `tracestate` that it cannot read."""

        class Failing(SpanExporter):
            def export(self, spans: object) -> SpanExportResult:
                return SpanExportResult.FAILURE

        exporter = CountedExporter(Failing(), "grpc://a:1", TracingMetrics(CollectorRegistry()))
        TraceState.from_header(["from a client"])
        exporter.export([])
        exporter.shutdown()
        (line,) = (one for one in caplog.records if one.name == "extproc.tracing")
        assert line.fields["why"] == ""  # type: ignore[attr-defined]

    async def test_that_hangs_costs_spans_and_no_request_waits(
        self, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "600")
        monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "4")
        monkeypatch.setattr("extproc.adapters.tracing.exporting.MOST_WAITING", 8)
        receiver.may_respond.clear()
        sidecar = TracedSidecar(receiver.url)
        for _ in range(20):
            sidecar.route(traceparent=parent())
        # A batch of 4 may be with the exporter, and 8 spans wait.
        assert 8 <= sidecar.count("dropped") <= 12
        assert sidecar.count("exported") == sidecar.count("failed") == 0
        assert len(sidecar.router.fleet.ledger.loads) == 0
        await sidecar.tracing.close()
        receiver.may_respond.set()
        await eventually(lambda: sidecar.count("exported") + sidecar.count("dropped") == 20)


def test_opentelemetry_is_not_imported_without_the_flag() -> None:
    program = (
        "import sys; from extproc import cli; from extproc.commands import serve; "
        "from extproc.edge.grpc import fast_server; "
        "sys.exit(any(name.startswith('opentelemetry') for name in sys.modules))"
    )
    assert run([sys.executable, "-c", program], check=False).returncode == 0
