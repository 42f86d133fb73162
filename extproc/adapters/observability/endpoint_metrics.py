"""Metrics of endpoints, read from the fleet's state at each scrape by Prometheus."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from extproc.adapters.observability.state import Readiness, endpoint_statuses
from extproc.core.fleet.fleet import Fleet
from extproc.core.fleet.report import Report
from extproc.core.routing.catalog import Catalog
from extproc.core.schema import Source
from extproc.core.strategies import Strategy


class EndpointMetrics(Collector):
    """Collected at each scrape, so that they cost nothing for requests."""

    def __init__(self, fleet: Fleet, catalog: Callable[[], Catalog]) -> None:
        self._fleet = fleet
        self._catalog = catalog
        self.age: Callable[[Source], float] = lambda _: 0.0

    def collect(self) -> Iterator[Metric]:
        yield from self._discovery_metrics()
        yield from self._signal_metrics()
        yield from self._prefix_metrics()

    def _discovery_metrics(self) -> Iterator[Metric]:
        inflight = GaugeMetricFamily(
            "extproc_inflight_requests",
            "Requests in flight that this sidecar routed to an endpoint for a model.",
            labels=["model", "endpoint"],
        )
        endpoints = GaugeMetricFamily(
            "extproc_endpoints",
            "Endpoints by state: ready, ejected or draining.",
            labels=["model", "state"],
        )
        age = GaugeMetricFamily(
            "extproc_discovery_age_seconds",
            "Time since a model's endpoints were last known to be current; 0 for a list of IP "
            "addresses.",
            labels=["model"],
        )
        catalog = self._catalog()
        counts = {name: _no_endpoints() for name in catalog.models}
        for model in catalog.models.values():
            source = model.spec.source
            age.add_metric([model.spec.name], 0.0 if source is None else self.age(source))
        # By model, so that each request counts once: models can share an address.
        held = {(name, one.address): count for name, one, count in self._fleet.ledger.held()}
        for name, endpoint, _, readiness in endpoint_statuses(self._fleet, catalog):
            counts.setdefault(name, _no_endpoints())[readiness] += 1
            inflight.add_metric([name, endpoint.address], held.get((name, endpoint.address), 0))
        for name, count in counts.items():
            for readiness, number in count.items():
                endpoints.add_metric([name, readiness], number)
        yield from (inflight, endpoints, age)

    def _signal_metrics(self) -> Iterator[Metric]:
        age = GaugeMetricFamily(
            "extproc_signals_age_seconds",
            "Time since an endpoint last reported its load, or since it joined; only for "
            "models whose strategy uses the load.",
            labels=["model", "endpoint"],
        )
        prompt = CounterMetricFamily(
            "extproc_endpoint_prompt_tokens",
            "Prompt tokens that an endpoint looked up in its cache, from all senders, by the "
            "endpoint's own metrics; only for models whose strategy uses these metrics.",
            labels=["model", "endpoint"],
        )
        cached = CounterMetricFamily(
            "extproc_endpoint_cached_tokens",
            "Tokens of extproc_endpoint_prompt_tokens_total that were in the cache.",
            labels=["model", "endpoint"],
        )
        for labels in self._labels(lambda strategy: strategy.reads_signals):
            seconds = self._fleet.signals.age(labels[1])
            if seconds is not None:
                age.add_metric(labels, seconds)
            report = self._report(labels[1])
            if report is not None and report.prompt_tokens is not None:
                prompt.add_metric(labels, report.prompt_tokens)
            if report is not None and report.cached_tokens is not None:
                cached.add_metric(labels, report.cached_tokens)
        yield from (age, prompt, cached)

    def _prefix_metrics(self) -> Iterator[Metric]:
        blocks = GaugeMetricFamily(
            "extproc_prefix_index_blocks",
            "Prompt blocks of 256 bytes that are estimated to be in an endpoint's cache.",
            labels=["model", "endpoint"],
        )
        for labels in self._labels(lambda strategy: strategy.reads_prompts):
            blocks.add_metric(labels, self._fleet.signals.prefixes.size(labels[1]))
        yield blocks

    def _labels(self, wanted: Callable[[Strategy], bool]) -> Iterator[tuple[str, str]]:
        """Yield model and address of each endpoint of the models with a wanted strategy."""
        for model in self._catalog().models.values():
            if wanted(model.strategy):
                yield from ((model.spec.name, one.address) for one in model.snapshot.endpoints)

    def _report(self, address: str) -> Report | None:
        reading = self._fleet.signals.latest(address)
        return None if reading is None else reading.report


def _no_endpoints() -> dict[Readiness, int]:
    """Return counts of zero: without them the series would be missing."""
    return {"ready": 0, "ejected": 0, "draining": 0}
