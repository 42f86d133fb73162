"""Prometheus metrics. Values that a client controls never become labels."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from prometheus_client import (
    CollectorRegistry,
    Counter,
    ProcessCollector,
    disable_created_metrics,
)
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from extproc.adapters.observability import logs
from extproc.adapters.observability.config_metrics import ConfigMetrics
from extproc.adapters.observability.decision_log import DecisionLog
from extproc.adapters.observability.discovery_metrics import DiscoveryMetrics
from extproc.adapters.observability.endpoint_metrics import EndpointMetrics
from extproc.adapters.observability.flow_metrics import FlowMetrics
from extproc.adapters.observability.prompt_metrics import PromptMetrics
from extproc.adapters.observability.shared_state_metrics import SharedStateMetrics
from extproc.adapters.observability.tallies import Distribution, Tally
from extproc.adapters.observability.tracing_metrics import TracingMetrics
from extproc.core.conversation.usage import Usage
from extproc.core.conversation.verdict import Listed, Passed, Verdict
from extproc.core.fleet.fleet import Fleet
from extproc.core.fleet.outcome import Outcome
from extproc.core.flow_control.flow_control import FlowControl
from extproc.core.request.refusals import Refusal
from extproc.core.routing.catalog import Catalog
from extproc.core.routing.decision import Decision
from extproc.core.schema import UNKNOWN_MODEL, Source
from extproc.core.strategies import Prediction

# Each counter would have a second series with its creation time, which has no use here.
disable_created_metrics()  # type: ignore[no-untyped-call]

NO_STRATEGY = "none"

# A decision takes tens of microseconds; a decision of milliseconds waited for the CPU.
_DURATION_BUCKETS = (
    *(0.00001, 0.00002, 0.00005, 0.0001, 0.0002, 0.0005),
    *(0.001, 0.002, 0.005, 0.01, 0.05),
)
_HOPS_BUCKETS = (0, 1, 2, 3, 5, 8, 13, 21, 34, 55)


class Telemetry:
    """The sidecar's metrics, in a registry of their own."""

    def __init__(self, fleet: Fleet, catalog: Callable[[], Catalog]) -> None:
        self._registry = registry = CollectorRegistry()
        self._catalog = catalog
        self._requests = _requests()
        self._duration = _duration()
        self._hops = _hops()
        for collector in (self._requests, self._duration, self._hops):
            registry.register(collector)
        self.decisions = DecisionLog()
        self.configuration = ConfigMetrics(registry)
        self.discovery = DiscoveryMetrics(registry)
        self._signal_readings = _signal_readings(registry)
        self._ejections = _ejections(registry)
        self._prompts = PromptMetrics(registry)
        self._endpoints = EndpointMetrics(fleet, catalog)
        registry.register(self._endpoints)
        registry.register(_LogMetrics())
        ProcessCollector(registry=registry)

    def decided(self, verdict: Verdict, seconds: float) -> None:
        """Count a verdict and the time that it took."""
        self._duration.observe(seconds)
        self.decisions.record(verdict, seconds)
        if isinstance(verdict, Decision):
            self._requests.count(verdict.model, verdict.strategy, "routed")
            # In a chain, `hops` is a position in the order instead of hops on the ring.
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
        """Count the usage that a response reports, and the error of the prediction."""
        self._prompts.answered(model, usage, prediction)

    def aborted(self) -> None:
        """Count a request that ended before its decision."""
        self._requests.count(UNKNOWN_MODEL, NO_STRATEGY, "aborted")

    def signal_read(self, path: str, result: str) -> None:
        """Count a reading of an endpoint."""
        self._signal_readings.labels(path, result).inc()

    def ejected(self, model: str, reason: Outcome) -> None:
        """Count an ejection of an endpoint of a model."""
        self._ejections.labels(model, str(reason)).inc()

    def set_ages(self, age: Callable[[Source], float]) -> None:
        """Set the function that returns the seconds since a source's endpoints were current."""
        self._endpoints.age = age

    def age(self, source: Source) -> float:
        """Return the seconds since a source's endpoints were current."""
        return self._endpoints.age(source)

    @property
    def requests(self) -> Mapping[tuple[str, ...], int]:
        """Requests by model, strategy and outcome."""
        return self._requests.counts

    @property
    def durations(self) -> Distribution:
        """The times of decisions, in seconds."""
        return self._duration

    @property
    def prompts(self) -> PromptMetrics:
        """Predicted and actual cache hits."""
        return self._prompts

    def share_state(self) -> SharedStateMetrics:
        """Add the metrics of the shared state, which a sidecar without it does not have."""
        return SharedStateMetrics(self._registry)

    def control_flow(self, flow: FlowControl) -> FlowMetrics:
        """Add the metrics of flow control, and return their listener."""
        return FlowMetrics(flow, self._catalog, self._registry)

    def trace(self) -> TracingMetrics:
        """Add the metrics of traces, which a sidecar without them does not have."""
        return TracingMetrics(self._registry)

    def exposition(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        return generate_latest(self._registry)


class _LogMetrics(Collector):
    """Metrics of the log, collected at each scrape."""

    def collect(self) -> Iterator[Metric]:
        yield CounterMetricFamily(
            "extproc_log_lines_dropped",
            "Log lines that were dropped because the output was full, slow or without a reader.",
            value=logs.dropped(),
        )


def _requests() -> Tally:
    return Tally(
        "extproc_requests",
        "Requests by outcome: routed, a refusal's code, models_listed, passed (without a "
        "decision), or aborted (before a decision).",
        ["model", "strategy", "outcome"],
    )


def _duration() -> Distribution:
    return Distribution(
        "extproc_decision_duration_seconds",
        "Time from the event that decides a request to the encoded reply.",
        _DURATION_BUCKETS,
    )


def _hops() -> Distribution:
    return Distribution(
        "extproc_ring_hops",
        "Endpoints skipped on the ring because their load exceeded the bound.",
        _HOPS_BUCKETS,
    )


def _signal_readings(registry: CollectorRegistry) -> Counter:
    return Counter(
        "extproc_signal_readings",
        "Readings of endpoints' metrics and lists of models by result: ok, unreachable, "
        "timeout, status, too_large or garbled.",
        ["path", "result"],
        registry=registry,
    )


def _ejections(registry: CollectorRegistry) -> Counter:
    return Counter(
        "extproc_ejections",
        "Ejections of endpoints, and extensions of ejections, by reason: error, reset, "
        "timeout, or replaced (on a retry).",
        ["model", "reason"],
        registry=registry,
    )
