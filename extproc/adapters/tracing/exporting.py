"""Export of spans in a thread of the SDK, with a limit on spans that wait and a count of all."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

from extproc.adapters.observability.logs import fields
from extproc.adapters.observability.tracing_metrics import TracingMetrics

log = logging.getLogger("extproc.tracing")

MOST_WAITING = 2048
"""Spans that may wait for the receiver. More are dropped, and no request waits for them."""

_SDK = logging.getLogger("opentelemetry")
_EXPORTERS = "opentelemetry.exporter."


class Spans(BatchSpanProcessor):
    """The spans that wait for their export, up to a limit."""

    def __init__(self, exporter: CountedExporter, metrics: TracingMetrics) -> None:
        # The SDK would drop the oldest span if its queue were full, and log that each time.
        super().__init__(exporter, max_queue_size=MOST_WAITING)
        self._exporter = exporter
        self._counts = metrics
        self._accepted = 0

    def on_end(self, span: ReadableSpan) -> None:
        """Add a span to those that wait, or drop it."""
        # Each of the two numbers is written by one thread.
        if self._accepted - self._exporter.taken >= MOST_WAITING:
            self._counts.dropped += 1
            return
        self._accepted += 1
        super().on_end(span)


class CountedExporter(SpanExporter):
    """An exporter that counts spans, and logs when the receiver fails and when it recovers."""

    def __init__(self, exporter: SpanExporter, url: str, metrics: TracingMetrics) -> None:
        self._exporter = exporter
        self._url = url
        self._metrics = metrics
        self._failing = False
        self._causes = _Causes()
        self.taken = 0
        """Spans that were passed to this exporter."""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Export spans. Runs in the SDK's thread."""
        self.taken += len(spans)
        try:
            result = self._exporter.export(spans)
        except Exception as error:
            self._causes.last = str(error)
            result = SpanExportResult.FAILURE
        if result is SpanExportResult.SUCCESS:
            self._metrics.exported += len(spans)
        else:
            self._metrics.failed += len(spans)
        self._log(failing=result is not SpanExportResult.SUCCESS)
        return result

    def shutdown(self) -> None:
        """Stop, and interrupt an export that waits for its next attempt."""
        self._exporter.shutdown()
        self._causes.close()

    def _log(self, *, failing: bool) -> None:
        if failing is self._failing:
            return
        self._failing = failing
        if failing:
            log.warning("spans not exported", extra=fields(to=self._url, why=self._causes.last))
        else:
            log.info("spans exported again", extra=fields(to=self._url))


class _Causes(logging.Handler):
    """Keeps the last message of the SDK's exporters, which would log each failed attempt.

    Other messages of the SDK are dropped: some quote what a client sent, such as its `tracestate`.
    """

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.last = ""
        _SDK.addHandler(self)
        _SDK.propagate = False

    def emit(self, record: logging.LogRecord) -> None:
        if record.name.startswith(_EXPORTERS):
            self.last = record.getMessage()

    def close(self) -> None:
        _SDK.removeHandler(self)
        super().close()
