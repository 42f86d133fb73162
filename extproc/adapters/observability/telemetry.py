"""Prometheus metrics. What a client controls never becomes a label."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    ProcessCollector,
    disable_created_metrics,
)
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from extproc.adapters.observability import logs
from extproc.adapters.observability.endpoint_metrics import EndpointMetrics
from extproc.adapters.observability.prompt_metrics import PromptMetrics
from extproc.adapters.observability.tallies import Distribution, Tally
from extproc.core.conversation.usage import Usage
from extproc.core.conversation.verdict import Listed, Passed, Verdict
from extproc.core.fleet.fleet import Fleet
from extproc.core.fleet.outcome import Outcome
from extproc.core.request.refusals import Refusal
from extproc.core.routing.catalog import Catalog
from extproc.core.routing.decision import Decision
from extproc.core.schema import Source
from extproc.core.strategies import Prediction

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

    def __init__(self, fleet: Fleet, catalog: Callable[[], Catalog]) -> None:
        self._registry = registry = CollectorRegistry()
        self._requests = Tally(
            "extproc_requests",
            "Requests by what became of them: routed, a refusal's code, models_listed, passed "
            "undecided, or aborted before a decision.",
            ["model", "strategy", "outcome"],
        )
        self._duration = Distribution(
            "extproc_decision_duration_seconds",
            "Time from the arrival of the event that decides a request to its encoded answer.",
            _DURATION_BUCKETS,
        )
        self._hops = Distribution(
            "extproc_ring_hops",
            "Endpoints passed over on the ring because they were above the load bound.",
            _HOPS_BUCKETS,
        )
        for collector in (self._requests, self._duration, self._hops):
            registry.register(collector)
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
        self._lookups = Counter(
            "extproc_name_lookups",
            "Lookups of endpoints' host names: ok, none (the name has no addresses) or failed (no "
            "usable response).",
            ["result"],
            registry=registry,
        )
        self._signal_readings = Counter(
            "extproc_signal_readings",
            "Readings of endpoints' own metrics and lists of models: ok, unreachable, timeout, "
            "status, too_large or garbled.",
            ["path", "result"],
            registry=registry,
        )
        self._ejections = Counter(
            "extproc_ejections",
            "Times an endpoint was avoided from then on, or for longer, because it failed: error, "
            "reset, timeout, or replaced on a retry.",
            ["model", "reason"],
            registry=registry,
        )
        self._prompts = PromptMetrics(registry)
        self._endpoints = EndpointMetrics(fleet, catalog)
        registry.register(self._endpoints)
        registry.register(_Logs())
        ProcessCollector(registry=registry)

    def decided(self, verdict: Verdict, seconds: float) -> None:
        """Counts a verdict and the time it took."""
        self._duration.observe(seconds)
        if isinstance(verdict, Decision):
            self._requests.count(verdict.model, verdict.strategy, "routed")
            # In a chain they are places in the order, and no hops on the ring.
            if verdict.strategy == "PrefixHash" and verdict.key is not None:
                self._hops.observe(verdict.hops)
            if verdict.prediction is not None:
                self._prompts.predicted(verdict.model, verdict.prediction)
        elif isinstance(verdict, Refusal):
            self._requests.count(verdict.model, NO_STRATEGY, verdict.code)
        elif isinstance(verdict, Listed):
            self._requests.count(UNKNOWN_MODEL, NO_STRATEGY, "models_listed")
        elif isinstance(verdict, Passed):
            self._requests.count(UNKNOWN_MODEL, NO_STRATEGY, "passed")

    def answered(self, model: str, usage: Usage, prediction: Prediction | None) -> None:
        """Counts what an answer said of its prompt, and how far the prediction was from it."""
        self._prompts.answered(model, usage, prediction)

    def aborted(self) -> None:
        """Counts a request that ended before it could be decided."""
        self._requests.count(UNKNOWN_MODEL, NO_STRATEGY, "aborted")

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

    def looked_up(self, result: str) -> None:
        """Count a lookup of an endpoint's host name."""
        self._lookups.labels(result).inc()

    def signal_read(self, path: str, result: str) -> None:
        """Counts a reading of what an endpoint says of itself."""
        self._signal_readings.labels(path, result).inc()

    def ejected(self, model: str, reason: Outcome) -> None:
        """Counts an ejection of one of a model's endpoints."""
        self._ejections.labels(model, str(reason)).inc()

    def read_ages(self, age: Callable[[Source], float]) -> None:
        """From now on asks this for the seconds since a source's endpoints were current."""
        self._endpoints.age = age

    def exposition(self) -> bytes:
        """All metrics in Prometheus' text format."""
        return generate_latest(self._registry)


class _Logs(Collector):
    """What became of the log, asked of it when Prometheus asks."""

    def collect(self) -> Iterator[Metric]:
        yield CounterMetricFamily(
            "extproc_log_lines_dropped",
            "Lines of the log that were not written: nobody read them, or there was no room.",
            value=logs.dropped(),
        )
