"""The tables that others published of real fleets, to lay a run of ours beside.

They are in `published/*.yaml`, typed in from the publications, under the names that the
metrics have in `Summary`. Strategies have our names; what the publication calls them is kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from functools import lru_cache
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any

import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
)
from rich import box
from rich.table import Table

from extproc.core.schema import LoadBalancingSpec
from extproc.lab.measures.names import ENGINE_METRICS, is_count, is_share, label
from extproc.lab.measures.serving import Summary
from extproc.lab.measures.times import ratio

_DIRECTORY = Path(__file__).with_name("published")

_NAMES = ENGINE_METRICS | {one.name for one in fields(Summary)} - {"workload", "strategy", "notes"}


def _known(name: str) -> str:
    """A misspelt metric would never meet its counterpart, and nobody would notice."""
    if name not in _NAMES:
        raise ValueError(f"{name!r} is not the name of a metric")
    return name


def _several(value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, list) else (value,)


def _alone(strategy: str) -> str:
    """One that needs nothing but its name."""
    try:
        return LoadBalancingSpec.model_validate({"strategy": strategy}).strategy
    except ValidationError as error:
        raise ValueError(f"{strategy!r}: {error.errors()[0]['msg']}") from None


Figure = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]
Runs = Annotated[tuple[Figure, ...], BeforeValidator(_several), Field(min_length=1)]
"""One value for each run that the publication reports."""


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class PublishedRow(_Strict):
    """What one strategy did with one workload."""

    strategy: Annotated[str, AfterValidator(_alone)]
    """Its name here."""

    label: str
    """Its name in the publication."""

    second_run: bool = False
    """The same done again, and not what the publication quotes: it shows the noise."""

    metrics: dict[Annotated[str, AfterValidator(_known)], Runs]

    def value(self, metric: str) -> float | None:
        """The mean over the runs; None where it was not published."""
        runs = self.metrics.get(metric)
        return fmean(runs) if runs else None


class PublishedTable(_Strict):
    """What several strategies did with one workload."""

    workload: str

    source: str
    """The publication, in one line."""

    fitted: bool
    """Whether the simulated replica's parameters were tuned on it. If so, to agree with it is
    consistency and not prediction."""

    rows: Annotated[tuple[PublishedRow, ...], Field(strict=False, min_length=1)]

    limited_client: bool = False
    """Whether benchmark_serving.py measured it, whose one core may have been the limit."""

    replicas: Count | None = None
    """Engines, if they were not as many as the workload has."""

    concurrency: Count | None = None
    """Sessions at a time, likewise."""

    sessions: Count | None = None
    """So many of the first, if it was not the whole workload."""


@lru_cache
def tables() -> tuple[PublishedTable, ...]:
    """All of them. Raises ValueError if a file is not as it should be."""
    return tuple(table for path in sorted(_DIRECTORY.glob("*.yaml")) for table in read(path))


def read(path: Path) -> list[PublishedTable]:
    """The tables of a file. Raises OSError; ValueError if it is not as it should be."""
    try:
        document = yaml.safe_load(path.read_text())
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())) from None
    return TypeAdapter(Annotated[list[PublishedTable], Field(min_length=1)]).validate_python(
        document
    )


def table_of(workload: str) -> PublishedTable | None:
    """What was published of a workload; None if nothing was."""
    return next((table for table in tables() if table.workload == workload), None)


def row_of(workload: str, strategy: str, *, second_run: bool = False) -> PublishedRow | None:
    """What was published of a strategy with a workload; None if nothing was."""
    table = table_of(workload)
    wanted = (strategy, second_run)
    rows = table.rows if table else ()
    return next((row for row in rows if (row.strategy, row.second_run) == wanted), None)


def beside(summary: Summary, ours: str = "simulated") -> Table | None:
    """The published figures, ours (by the name of how they came about) and ours over theirs.

    Of several published runs the mean and the range are shown. None if nothing was published.
    """
    table, row = table_of(summary.workload), row_of(summary.workload, summary.strategy)
    if table is None or row is None:
        return None
    again = row_of(summary.workload, summary.strategy, second_run=True)
    shown = Table(
        title=f"{summary.workload}, {summary.strategy} (published as {row.label})",
        caption=f"{table.source}; {'' if table.fitted else 'not '}used to fit the replica's model",
        box=box.SIMPLE_HEAD,
    )
    shown.add_column("")
    headings = ["published", *(["second run"] if again else []), ours, "ratio"]
    for heading in headings:
        shown.add_column(heading, justify="right")
    for metric, runs in row.metrics.items():
        cells = [_range(metric, runs)]
        if again:
            cells.append(_range(metric, again.metrics.get(metric, ())))
        value = summary.metric(metric)
        cells += ["-", "-"] if value is None else [_text(metric, value), _share(value, runs)]
        shown.add_row(label(metric), *cells)
    return shown


def _range(metric: str, runs: Sequence[float]) -> str:
    if not runs:
        return "-"
    mean = _text(metric, fmean(runs))
    ends = f" ({_text(metric, min(runs))} to {_text(metric, max(runs))})"
    return mean + (ends if len(runs) > 1 else "")


def _share(value: float, runs: Sequence[float]) -> str:
    return f"{ratio(value, fmean(runs)):.2f}"


def _text(metric: str, value: float) -> str:
    if is_share(metric):
        return f"{value:.1%}"
    return f"{value:,.0f}" if is_count(metric) or value >= 1e3 else f"{value:,.2f}"
