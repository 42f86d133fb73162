"""Metrics of endpoints: what the router knows of them when Prometheus asks."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from extproc.adapters.observability.state import Readiness, standings
from extproc.core.fleet.fleet import Fleet
from extproc.core.fleet.signals import Report
from extproc.core.routing.catalog import Catalog
from extproc.core.schema import Source
from extproc.core.strategies import Strategy


class EndpointMetrics(Collector):
    """Collected when they are asked for, so that requests pay nothing for them."""

    def __init__(self, fleet: Fleet, catalog: Callable[[], Catalog]) -> None:
        self._fleet = fleet
        self._catalog = catalog
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
            "Time since a model's endpoints were last known to be current; 0 for a list of IP "
            "addresses.",
            labels=["model"],
        )
        catalog = self._catalog()
        counts = {name: _no_endpoints() for name in catalog.models}
        for model in catalog.models.values():
            source = model.spec.source
            age.add_metric([model.spec.name], 0.0 if source is None else self.age(source))
        for name, endpoint, requests, readiness in standings(self._fleet, catalog):
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
            seconds = self._fleet.signals.age(labels[1])
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
            blocks.add_metric(labels, self._fleet.signals.prefixes.size(labels[1]))
        yield blocks

    def _places(self, wanted: Callable[[Strategy], bool]) -> Iterator[tuple[str, str]]:
        """Model and address of each endpoint, of the models with such a strategy."""
        for model in self._catalog().models.values():
            if wanted(model.strategy):
                yield from ((model.spec.name, one.address) for one in model.snapshot.endpoints)

    def _report(self, address: str) -> Report | None:
        reading = self._fleet.signals.latest(address)
        return None if reading is None else reading.report


def _no_endpoints() -> dict[Readiness, int]:
    """A count to begin with: a series that is not there is no zero."""
    return {"ready": 0, "ejected": 0, "draining": 0}
