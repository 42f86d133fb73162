"""The reference of metrics."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from time import monotonic
from typing import NamedTuple

from prometheus_client.metrics import MetricWrapperBase
from prometheus_client.metrics_core import Metric

from extproc.adapters.observability.telemetry import Telemetry
from extproc.core.fleet.fleet import Fleet
from extproc.core.flow_control.flow_control import FlowControl
from extproc.core.routing.catalog import Catalog
from extproc.core.routing.router import Router
from extproc.lab.pages.lines import NOTHING, codes, heading, table


class MetricRow(NamedTuple):
    """A metric as Prometheus shows it."""

    name: str
    kind: str
    labels: Sequence[str]
    meaning: str


def metrics_section() -> Iterator[str]:
    """Return the lines of the section."""
    yield from heading("Metrics")
    yield (
        "The admin port serves them under `/metrics`, on Linux with metrics of the process. "
        "Those of the shared state need `--shared-state`, and those of spans `--otlp`. Those of "
        "flow control have values for models with `flowControl`."
    )
    fleet = Fleet()
    telemetry = Telemetry(fleet, Catalog)
    telemetry.control_flow(FlowControl(Router(fleet), monotonic))
    telemetry.share_state()
    telemetry.trace()
    rows = [
        (f"`{one.name}`", one.kind, codes(one.labels) or NOTHING, one.meaning)
        for one in metrics(telemetry)
    ]
    yield from table(("metric", "type", "labels", "meaning"), rows)


def metrics(telemetry: Telemetry) -> list[MetricRow]:
    """Return the metrics of a registry, including those without samples."""
    found: list[MetricRow] = []
    for collector in telemetry._registry._collector_to_names:
        if isinstance(collector, MetricWrapperBase):
            described = next(iter(collector.describe()))
            found.append(_metric(described, collector._labelnames))
        else:
            found += [_metric(one, getattr(one, "_labelnames", ())) for one in collector.collect()]
    return sorted(one for one in found if one.name.startswith("extproc_"))


def _metric(metric: Metric, labels: Sequence[str]) -> MetricRow:
    name = metric.name + ("_total" if metric.type == "counter" else "")
    return MetricRow(name, metric.type, labels, metric.documentation)
