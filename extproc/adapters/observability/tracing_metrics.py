"""Metrics of the export of spans."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector


class TracingMetrics(Collector):
    """Counts spans by what became of them. Each count is written by one thread."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.exported = 0
        self.failed = 0
        self.dropped = 0
        registry.register(self)

    def collect(self) -> Iterator[Metric]:
        family = CounterMetricFamily(
            "extproc_spans",
            "Spans of sampled traces by result: exported, failed (the receiver is unreachable or "
            "refuses them), or dropped (too many wait for the receiver).",
            labels=["result"],
        )
        family.add_metric(["exported"], self.exported)
        family.add_metric(["failed"], self.failed)
        family.add_metric(["dropped"], self.dropped)
        yield family
