"""Prometheus metrics. What a client controls never becomes a label."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
)
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from extproc.adapters import logs
from extproc.adapters.state import Readiness, standings
from extproc.adapters.tallies import Distribution, Tally
from extproc.core.conversation import Listed, Verdict
from extproc.core.errors import Refusal
from extproc.core.outcome import Outcome
from extproc.core.router import Decision, Router
from extproc.core.signals import Report
from extproc.core.spec import Source
from extproc.core.strategies import Prediction, Strategy
from extproc.core.usage import Usage

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
_ERROR_BUCKETS = (-0.5, -0.2, -0.1, -0.05, -0.02, 0.02, 0.05, 0.1, 0.2, 0.5, 1)


class Telemetry:
    """The sidecar's metrics, in a registry of their own."""

    def __init__(self, router: Router) -> None:
        self._registry = registry = CollectorRegistry()
        self._requests = Tally(
            "extproc_requests",
            "Requests by what became of them: routed, a refusal's code, models_listed, or aborted "
            "before a decision.",
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
        self._prompts = _Prompts(registry)
        self._endpoints = _Endpoints(router)
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


class _OfModel(NamedTuple):
    """The metrics of one model's prompts."""

    prompt: Counter
    predicted: Counter
    answered: Counter
    cached: Counter
    error: Histogram


class _Prompts:
    """How much of prompts is said to be cached: beforehand by the strategy, then by the answer."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._every = _OfModel(
            prompt=Counter(
                "extproc_prompt_tokens",
                "Tokens of prompts, by their bytes, where the strategy predicts what is cached.",
                ["model"],
                registry=registry,
            ),
            predicted=Counter(
                "extproc_predicted_cached_tokens",
                "Of extproc_prompt_tokens_total, predicted to be in the chosen endpoint's cache.",
                ["model"],
                registry=registry,
            ),
            answered=Counter(
                "extproc_answered_prompt_tokens",
                "Tokens of prompts in answers that say how many were cached, where the strategy "
                "predicts it and Envoy shows the bodies of answers.",
                ["model"],
                registry=registry,
            ),
            cached=Counter(
                "extproc_answered_cached_tokens",
                "Of extproc_answered_prompt_tokens_total, found in the cache.",
                ["model"],
                registry=registry,
            ),
            error=Histogram(
                "extproc_hit_prediction_error",
                "The share of a prompt that was predicted to be cached, less the share that the "
                "answer says was: above 0 where the prefix index believes in too much.",
                ["model"],
                buckets=_ERROR_BUCKETS,
                registry=registry,
            ),
        )
        self._models: dict[str, _OfModel] = {}

    def predicted(self, model: str, prediction: Prediction) -> None:
        """A request was routed."""
        of_model = self._of(model)
        of_model.prompt.inc(prediction.prompt_tokens)
        of_model.predicted.inc(prediction.cached_tokens)

    def answered(self, model: str, usage: Usage, prediction: Prediction | None) -> None:
        """A request was answered; None where the prediction was of another endpoint."""
        tokens, cached = usage
        if cached is None:
            return
        of_model = self._of(model)
        of_model.answered.inc(tokens)
        of_model.cached.inc(cached)
        if prediction is not None:
            of_model.error.observe(prediction.hit - cached / tokens)

    def _of(self, model: str) -> _OfModel:
        found = self._models.get(model)
        if found is None:
            every = self._every
            found = self._models[model] = _OfModel(
                every.prompt.labels(model),
                every.predicted.labels(model),
                every.answered.labels(model),
                every.cached.labels(model),
                every.error.labels(model),
            )
        return found


class _Endpoints(Collector):
    """What the router knows when Prometheus asks, so that requests pay nothing for it."""

    def __init__(self, router: Router) -> None:
        self._router = router
        self.age: Callable[[Source], float] = lambda _: 0.0

    def collect(self) -> Iterator[Metric]:
        yield from self._of_discovery()
        yield from self._of_signals()
        yield from self._of_prefixes()

    def _of_discovery(self) -> Iterator[Metric]:
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
        counts = {name: _no_endpoints() for name in self._router.catalog.models}
        for model in self._router.catalog.models.values():
            source = model.spec.source
            age.add_metric([model.spec.name], 0.0 if source is None else self.age(source))
        for name, endpoint, requests, readiness in standings(self._router):
            counts.setdefault(name, _no_endpoints())[readiness] += 1
            inflight.add_metric([name, endpoint.address], requests)
        for name, count in counts.items():
            for readiness, number in count.items():
                endpoints.add_metric([name, readiness], number)
        yield from (inflight, endpoints, age)

    def _of_signals(self) -> Iterator[Metric]:
        age = GaugeMetricFamily(
            "extproc_signals_age_seconds",
            "Time since an endpoint last said how loaded it is, since it came where it never did; "
            "only where the model's strategy reads it.",
            labels=["model", "endpoint"],
        )
        prompt = CounterMetricFamily(
            "extproc_endpoint_prompt_tokens",
            "Tokens of prompts that an endpoint has looked for in its cache, whoever sent them, by "
            "its own metrics; only where the model's strategy reads them.",
            labels=["model", "endpoint"],
        )
        cached = CounterMetricFamily(
            "extproc_endpoint_cached_tokens",
            "Of extproc_endpoint_prompt_tokens_total, found in the cache.",
            labels=["model", "endpoint"],
        )
        for labels in self._places(lambda strategy: strategy.reads_signals):
            seconds = self._router.signals.silence(labels[1])
            if seconds is not None:
                age.add_metric(labels, seconds)
            report = self._report(labels[1])
            if report is not None and report.prompt_tokens is not None:
                prompt.add_metric(labels, report.prompt_tokens)
            if report is not None and report.cached_tokens is not None:
                cached.add_metric(labels, report.cached_tokens)
        yield from (age, prompt, cached)

    def _of_prefixes(self) -> Iterator[Metric]:
        blocks = GaugeMetricFamily(
            "extproc_prefix_index_blocks",
            "Blocks of prompts, of 256 bytes, that an endpoint is believed to have in its cache.",
            labels=["model", "endpoint"],
        )
        for labels in self._places(lambda strategy: strategy.reads_prompts):
            blocks.add_metric(labels, self._router.signals.prefixes.size(labels[1]))
        yield blocks

    def _places(self, wanted: Callable[[Strategy], bool]) -> Iterator[tuple[str, str]]:
        """Model and address of each endpoint, of the models with such a strategy."""
        for model in self._router.catalog.models.values():
            if wanted(model.strategy):
                yield from ((model.spec.name, one.address) for one in model.snapshot.endpoints)

    def _report(self, address: str) -> Report | None:
        reading = self._router.signals.latest(address)
        return None if reading is None else reading.report


class _Logs(Collector):
    """What became of the log, asked of it when Prometheus asks."""

    def collect(self) -> Iterator[Metric]:
        yield CounterMetricFamily(
            "extproc_log_lines_dropped",
            "Lines of the log that were not written: nobody read them, or there was no room.",
            value=logs.dropped(),
        )


def _no_endpoints() -> dict[Readiness, int]:
    """A count to begin with: a series that is not there is no zero."""
    return {"ready": 0, "ejected": 0, "draining": 0}
