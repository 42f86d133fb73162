"""The tracer: it turns decisions into OpenTelemetry's spans.

A span is created when its decision is known, with the time of the stream's beginning. So a request
whose trace is not sampled costs no more than reading its `traceparent`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from threading import Thread
from time import time_ns

from opentelemetry.context import Context
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SpanExporter
from opentelemetry.trace import (
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    TraceState,
    set_span_in_context,
)

from extproc import __version__
from extproc.adapters.observability.tracing_metrics import TracingMetrics
from extproc.adapters.tracing.attributes import of_decision, of_refusal
from extproc.adapters.tracing.endpoint import OtlpEndpoint
from extproc.adapters.tracing.exporting import CountedExporter, Spans
from extproc.adapters.tracing.port import Metadata
from extproc.adapters.tracing.trace_context import (
    TRACEPARENT,
    TRACESTATE,
    TraceContext,
    trace_context,
)
from extproc.core.conversation.verdict import Verdict
from extproc.core.request.refusals import Refusal
from extproc.core.routing.decision import Decision

SPAN = "route"
"""Name of a span; a decision's model follows it."""

_PARENT, _STATE = TRACEPARENT.encode(), TRACESTATE.encode()
_FOLLOWS_PARENT = "remoteParentNotSampled:AlwaysOffSampler"
_LAST_EXPORT_SECONDS = 2.0
_ROOT = Context()


class OtlpTracing:
    """A tracer whose spans go to an OTLP receiver."""

    def __init__(self, endpoint: OtlpEndpoint, metrics: TracingMetrics) -> None:
        exporter = CountedExporter(_exporter(endpoint), endpoint.url, metrics)
        provider = TracerProvider(resource=_resource(), shutdown_on_exit=False)
        provider.add_span_processor(Spans(exporter, metrics))
        self._provider = provider
        self._tracer = provider.get_tracer("extproc", __version__)
        # OTEL_TRACES_SAMPLER may name a sampler that does not follow the parent.
        self._skips_unsampled = _FOLLOWS_PARENT in provider.sampler.get_description()

    def begin(self, metadata: Metadata) -> OtlpSpan:
        """Return the span of a stream that begins now."""
        return OtlpSpan(self, trace_context(metadata.get(_PARENT), metadata.get(_STATE)))

    def record(
        self, parent: TraceContext | None, started: int, verdict: Verdict, request_id: str
    ) -> None:
        """Record a decision or a refusal that was made just now, if its trace is sampled."""
        if parent is not None and not parent.sampled and self._skips_unsampled:
            return
        if not isinstance(verdict, (Decision, Refusal)):
            return
        name = f"{SPAN} {verdict.model}" if isinstance(verdict, Decision) else SPAN
        context = _ROOT if parent is None else _context(parent)
        span = self._tracer.start_span(name, context, SpanKind.INTERNAL, start_time=started)
        if not span.is_recording():
            return
        if isinstance(verdict, Decision):
            span.set_attributes(of_decision(verdict))
        else:
            span.set_attributes(of_refusal(verdict))
            span.set_status(Status(StatusCode.ERROR, verdict.message))
        if request_id:
            span.set_attribute("extproc.request_id", request_id)
        span.end()

    async def close(self) -> None:
        """Export the last spans, but wait no longer than a moment for a receiver that is down."""
        # A daemon, because a thread of the event loop's pool would delay the end of the process.
        thread = Thread(target=self._provider.shutdown, name="last-export", daemon=True)
        thread.start()
        deadline = asyncio.get_running_loop().time() + _LAST_EXPORT_SECONDS
        while thread.is_alive() and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(0.01)


class OtlpSpan:
    """The span of one stream, and its parent."""

    __slots__ = ("_parent", "_started", "_tracing")

    def __init__(self, tracing: OtlpTracing, parent: TraceContext | None) -> None:
        self._tracing = tracing
        self._parent = parent
        self._started = time_ns()

    def read(self, headers: Mapping[str, bytes]) -> None:
        """Read the trace context of the HTTP request.

        If Envoy traces, its own span is the parent. It is only in the metadata of Envoy's call.
        """
        if self._parent is None:
            self._parent = trace_context(headers.get(TRACEPARENT), headers.get(TRACESTATE))

    def decided(self, verdict: Verdict, request_id: str) -> None:
        """End the span and hand it to the exporter's thread."""
        self._tracing.record(self._parent, self._started, verdict, request_id)


def _context(parent: TraceContext) -> Context:
    state = TraceState.from_header([parent.state.decode("latin-1")]) if parent.state else None
    return set_span_in_context(
        NonRecordingSpan(
            SpanContext(
                int(parent.trace_id, 16),
                int(parent.span_id, 16),
                is_remote=True,
                trace_flags=TraceFlags(parent.flags),
                trace_state=state,
            )
        ),
        _ROOT,
    )


def _exporter(endpoint: OtlpEndpoint) -> SpanExporter:
    if endpoint.protocol == "grpc":
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as Grpc

        return Grpc(endpoint.url)
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as Http

    return Http(endpoint.url)


def _resource() -> Resource:
    """Return the attributes of this process. OTEL_SERVICE_NAME and _RESOURCE_ATTRIBUTES win."""
    own = Resource.create({"service.name": "extproc", "service.version": __version__})
    return own.merge(OTELResourceDetector().detect())
