"""Prometheus metrics. What a client controls never becomes a label."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
)
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from extproc.adapters.state import Readiness, standings
from extproc.core.catalog import Model
from extproc.core.conversation import Listed, Verdict
from extproc.core.errors import Refusal
from extproc.core.router import Decision, Router
from extproc.core.spec import Source

# A second series for each counter, with the time of its birth: nobody here asks.
disable_created_metrics()  # type: ignore[no-untyped-call]

NO_STRATEGY = "none"
UNKNOWN_MODEL = "unknown"

# A decision takes tens of microseconds; what takes milliseconds waited for the CPU.
_DURATION_BUCKETS = (
    *(0.00001, 0.00002, 0.00005, 0.0001, 0.0002, 0.0005),
    *(0.001, 0.002, 0.005, 0.01, 0.05),
)
_HOPS_BUCKETS = (0, 1, 2, 3, 5, 8, 13, 21, 34, 55)


class Telemetry:
    """The sidecar's metrics, in a registry of their own."""

    def __init__(self, router: Router) -> None:
        self._registry = registry = CollectorRegistry()
        self._requests = Counter(
            "extproc_requests",
            "Requests by what became of them: routed, a refusal's code, models_listed, or aborted "
            "before a decision.",
            ["model", "strategy", "outcome"],
            registry=registry,
        )
        self._outcomes: dict[tuple[str, str, str], Counter] = {}
        self._duration = Histogram(
            "extproc_decision_duration_seconds",
            "Time from the arrival of the event that decides a request to its encoded answer.",
            buckets=_DURATION_BUCKETS,
            registry=registry,
        )
        self._hops = Histogram(
            "extproc_ring_hops",
            "Endpoints passed over on the ring because they were above the load bound.",
            buckets=_HOPS_BUCKETS,
            registry=registry,
        )
        self._reloads = Counter(
            "extproc_config_reloads",
            "Models documents offered, the first included.",
            ["result"],
            registry=registry,
        )
        self._last_reload = Gauge(
            "extproc_config_last_reload_successful",
            "1 if the last models document offered is in force, 0 if it was refused.",
            registry=registry,
        )
        for result in ("success", "failure"):
            self._reloads.labels(result)
        self._refused_endpoints = Counter(
            "extproc_endpoints_refused",
            "Discovered addresses that are never routed to, each counted when it appears.",
            ["source", "reason"],
            registry=registry,
        )
        self._lists = Counter(
            "extproc_discovery_lists",
            "Lists of Kubernetes objects by result: ok, unreachable, garbled, expired or a status.",
            ["resource", "result"],
            registry=registry,
        )
        self._watches = Counter(
            "extproc_discovery_watches",
            "Watches of Kubernetes objects by how they ended: as agreed (ended), or as lists fail.",
            ["resource", "result"],
            registry=registry,
        )
        self._signal_readings = Counter(
            "extproc_signal_readings",
            "Readings of endpoints' own metrics and lists of models: ok, unreachable, timeout, "
            "status, too_large or garbled.",
            ["path", "result"],
            registry=registry,
        )
        self._endpoints = _Endpoints(router)
        registry.register(self._endpoints)
        ProcessCollector(registry=registry)

    def decided(self, verdict: Verdict, seconds: float) -> None:
        """Counts a verdict and the time it took."""
        self._duration.observe(seconds)
        if isinstance(verdict, Decision):
            self._count(verdict.model, verdict.strategy, "routed")
            # In a chain they are places in the order, and no hops on the ring.
            if verdict.strategy == "PrefixHash" and verdict.key is not None:
                self._hops.observe(verdict.hops)
        elif isinstance(verdict, Refusal):
            self._count(verdict.model, NO_STRATEGY, verdict.code)
        elif isinstance(verdict, Listed):
            self._count(UNKNOWN_MODEL, NO_STRATEGY, "models_listed")

    def aborted(self) -> None:
        """Counts a request that ended before it could be decided."""
        self._count(UNKNOWN_MODEL, NO_STRATEGY, "aborted")

    def reloaded(self, *, successfully: bool) -> None:
        """Counts an offered models document."""
        self._reloads.labels("success" if successfully else "failure").inc()
        self._last_reload.set(successfully)

    def endpoint_refused(self, source: Source, reason: str) -> None:
        """Counts an address that was found and is never routed to."""
        self._refused_endpoints.labels(str(source), reason).inc()

    def listed(self, resource: str, result: str) -> None:
        """Counts a list of Kubernetes objects."""
        self._lists.labels(resource, result).inc()

    def watched(self, resource: str, result: str) -> None:
        """Counts a watch of Kubernetes objects, at its end."""
        self._watches.labels(resource, result).inc()

    def signal_read(self, path: str, result: str) -> None:
        """Counts a reading of what an endpoint says of itself."""
        self._signal_readings.labels(path, result).inc()

    def read_ages(self, age: Callable[[Source], float]) -> None:
        """From now on asks this for the seconds since a source's endpoints were current."""
        self._endpoints.age = age

    def exposition(self) -> bytes:
        """All metrics in Prometheus' text format."""
        return generate_latest(self._registry)

    def _count(self, model: str, strategy: str, outcome: str) -> None:
        labels = (model, strategy, outcome)
        child = self._outcomes.get(labels)
        if child is None:
            child = self._outcomes[labels] = self._requests.labels(*labels)
        child.inc()


class _Endpoints(Collector):
    """Gauges read from the router when Prometheus asks, so that requests pay nothing for them."""

    def __init__(self, router: Router) -> None:
        self._router = router
        self.age: Callable[[Source], float] = lambda _: 0.0

    def collect(self) -> Iterator[Metric]:
        inflight = GaugeMetricFamily(
            "extproc_inflight_requests",
            "Requests in flight on an endpoint, by this sidecar's ledger.",
            labels=["model", "endpoint"],
        )
        endpoints = GaugeMetricFamily(
            "extproc_endpoints", "Endpoints by state.", labels=["model", "state"]
        )
        age = GaugeMetricFamily(
            "extproc_discovery_age_seconds",
            "Time since a model's endpoints were last known to be current; 0 for a static list.",
            labels=["model"],
        )
        signals_age = GaugeMetricFamily(
            "extproc_signals_age_seconds",
            "Time since an endpoint last said how loaded it is, since it came where it never did; "
            "only where the model's strategy reads it.",
            labels=["model", "endpoint"],
        )
        counts = {name: _no_endpoints() for name in self._router.catalog.models}
        for model in self._router.catalog.models.values():
            source = model.spec.source
            age.add_metric([model.spec.name], 0.0 if source is None else self.age(source))
            for address, seconds in self._signals_ages(model):
                signals_age.add_metric([model.spec.name, address], seconds)
        for name, endpoint, requests, readiness in standings(self._router):
            counts.setdefault(name, _no_endpoints())[readiness] += 1
            inflight.add_metric([name, endpoint.address], requests)
        for name, count in counts.items():
            for readiness, number in count.items():
                endpoints.add_metric([name, readiness], number)
        yield inflight
        yield endpoints
        yield age
        yield signals_age

    def _signals_ages(self, model: Model) -> Iterator[tuple[str, float]]:
        if model.strategy.reads_signals:
            for endpoint in model.snapshot.endpoints:
                seconds = self._router.signals.silence(endpoint.address)
                if seconds is not None:
                    yield endpoint.address, seconds


def _no_endpoints() -> dict[Readiness, int]:
    """A count to begin with: a series that is not there is no zero."""
    return {"ready": 0, "draining": 0}
