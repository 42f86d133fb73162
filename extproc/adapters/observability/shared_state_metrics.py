"""Metrics of the state that sidecars share."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, Counter
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from extproc.adapters.observability.tallies import Distribution

_LAG_BUCKETS = (0.005, 0.01, 0.02, 0.03, 0.05, 0.1, 0.2, 0.5, 1.0, 3.0)


class SharedStateMetrics(Collector):
    """Counts messages, and reads the state of the link at each scrape by Prometheus."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.connected: Callable[[], bool] = lambda: False
        self.peers: Callable[[], int] = lambda: 0
        self.lag = Distribution(
            "extproc_shared_state_lag_seconds",
            "Time from a request's decision at another sidecar to its arrival here.",
            _LAG_BUCKETS,
        )
        self._messages = Counter(
            "extproc_shared_state_messages",
            "Messages of the shared state by direction: in, out, or unreadable (in, but not "
            "written by a sidecar of this version).",
            ["direction"],
            registry=registry,
        )
        self._bytes = Counter(
            "extproc_shared_state_bytes",
            "Bytes of the messages of the shared state by direction: in or out.",
            ["direction"],
            registry=registry,
        )
        for direction in ("in", "out", "unreadable"):  # so that the first one is a change
            self._messages.labels(direction)
        registry.register(self.lag)
        registry.register(self)

    def collect(self) -> Iterator[Metric]:
        yield GaugeMetricFamily(
            "extproc_shared_state_connected",
            "1 if the sidecar is connected to the server of the shared state, 0 if not.",
            value=self.connected(),
        )
        yield GaugeMetricFamily(
            "extproc_shared_state_peers",
            "Other sidecars that share their state.",
            value=self.peers(),
        )

    def sent(self, size: int) -> None:
        """Count a message that this sidecar wrote."""
        self._messages.labels("out").inc()
        self._bytes.labels("out").inc(size)

    def received(self, size: int) -> None:
        """Count a message of another sidecar."""
        self._messages.labels("in").inc()
        self._bytes.labels("in").inc(size)

    def unreadable(self) -> None:
        """Count a message that was not read."""
        self._messages.labels("unreadable").inc()
