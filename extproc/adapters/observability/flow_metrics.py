"""Metrics of flow control."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from extproc.adapters.observability.tallies import Tally
from extproc.core.flow_control.flow_control import FlowControl
from extproc.core.routing.catalog import Catalog, Model

_WAIT_BUCKETS = (0.0, 0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0)


class FlowMetrics(Collector):
    """Counts what happens to requests, and reads queues and limits at each scrape."""

    def __init__(
        self, flow: FlowControl, catalog: Callable[[], Catalog], registry: CollectorRegistry
    ) -> None:
        self._flow = flow
        self._catalog = catalog
        self._wait = Histogram(
            "extproc_queue_wait_seconds",
            "Time that dispatched requests waited for room on an endpoint; 0 for those that were "
            "dispatched at once.",
            ["model", "class"],
            buckets=_WAIT_BUCKETS,
            registry=registry,
        )
        self._waits: dict[tuple[str, str], Histogram] = {}
        """The histogram of each model and class, because `labels` takes microseconds."""
        self._dispatched = Tally(
            "extproc_queue_dispatched",
            "Requests of models with flow control that were dispatched, by whether they waited.",
            ["model", "waited"],
        )
        self._refused = Tally(
            "extproc_queue_refused",
            "Requests that flow control refused, by reason: queue_full, queue_timeout, deadline "
            "(the request's own timeout is too short), evicted (for a higher priority) or "
            "draining.",
            ["model", "reason"],
        )
        for collector in (self._dispatched, self._refused, self):
            registry.register(collector)

    def dispatched(self, model: str, group: str, waited: float) -> None:
        """Count a request that was dispatched after this number of seconds."""
        wait = self._waits.get((model, group))
        if wait is None:
            wait = self._waits[model, group] = self._wait.labels(model, group)
        wait.observe(waited)
        self._dispatched.count(model, "true" if waited else "false")

    def refused(self, model: str, reason: str) -> None:
        """Count a refusal."""
        self._refused.count(model, reason)

    def collect(self) -> Iterator[Metric]:
        requests = GaugeMetricFamily(
            "extproc_queue_requests",
            "Requests that wait in this sidecar for room on an endpoint.",
            labels=["model"],
        )
        saturation = GaugeMetricFamily(
            "extproc_saturation",
            "Requests in flight and in the queue over the limits of all endpoints; above 1, "
            "requests wait. Without endpoints, the requests in the queue.",
            labels=["model"],
        )
        limits = GaugeMetricFamily(
            "extproc_endpoint_limit",
            "The most requests in flight that an endpoint runs well, as learned or configured.",
            labels=["model", "endpoint"],
        )
        for name, model in self._models():
            flow, room = self._flow.of(name), self._flow.room
            requests.add_metric([name], flow.queue.waiting)
            saturation.add_metric([name], room.saturation(flow, model))
            for endpoint in model.snapshot.endpoints:
                limit = room.limit(flow, model, endpoint.address)
                limits.add_metric([name, endpoint.address], limit)
        yield from (requests, saturation, limits)

    def _models(self) -> Iterator[tuple[str, Model]]:
        """Yield the models with flow control."""
        for name, model in self._catalog().models.items():
            if model.spec.flow_control is not None:
                yield name, model
