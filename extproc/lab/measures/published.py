"""Published tables of real fleets, to compare with a run.

`published/*.yaml` holds them, copied from the publications. Metrics have their names in `Summary`.
Strategies have this product's names, with the publication's names as labels.
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
    """Reject unknown names: a misspelled metric would never be compared."""
    if name not in _NAMES:
        raise ValueError(f"{name!r} is not the name of a metric")
    return name


def _several(value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, list) else (value,)


def _alone(strategy: str) -> str:
    """Accept a strategy that needs no parameters."""
    try:
        return LoadBalancingSpec.model_validate({"strategy": strategy}).strategy
    except ValidationError as error:
        raise ValueError(f"{strategy!r}: {error.errors()[0]['msg']}") from None


Figure = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]
Runs = Annotated[tuple[Figure, ...], BeforeValidator(_several), Field(min_length=1)]
"""A value for each run that the publication reports."""


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class PublishedRow(_Strict):
    """Published figures of one strategy with one workload."""

    strategy: Annotated[str, AfterValidator(_alone)]
    """This product's name of the strategy."""

    label: str
    """The publication's name of the strategy."""

    second_run: bool = False
    """True for a repeated run that the publication does not quote. It shows the noise."""

    metrics: dict[Annotated[str, AfterValidator(_known)], Runs]

    def value(self, metric: str) -> float | None:
        """Return the mean over the runs; None if not published."""
        runs = self.metrics.get(metric)
        return fmean(runs) if runs else None


class PublishedTable(_Strict):
    """Published figures of several strategies with one workload."""

    workload: str

    source: str
    """The publication, in one line."""

    fitted: bool
    """True if the simulated engine's parameters were fitted to it.

    Agreement with such a table shows consistency, not prediction.
    """

    rows: Annotated[tuple[PublishedRow, ...], Field(strict=False, min_length=1)]

    limited_client: bool = False
    """True if benchmark_serving.py measured it, whose single core may have been the limit."""

    replicas: Count | None = None
    """Number of engines, if not the workload's own."""

    concurrency: Count | None = None
    """Concurrent sessions, if not the workload's own."""

    sessions: Count | None = None
    """The first sessions only, if not the whole workload."""


@lru_cache
def tables() -> tuple[PublishedTable, ...]:
    """Return all tables. Raises ValueError if a file is invalid."""
    return tuple(table for path in sorted(_DIRECTORY.glob("*.yaml")) for table in read(path))


def read(path: Path) -> list[PublishedTable]:
    """Return the tables of a file. Raises OSError; ValueError if it is invalid."""
    try:
        document = yaml.safe_load(path.read_text())
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())) from None
    return TypeAdapter(Annotated[list[PublishedTable], Field(min_length=1)]).validate_python(
        document
    )


def table_of(workload: str) -> PublishedTable | None:
    """Return the table of a workload; None if nothing was published."""
    return next((table for table in tables() if table.workload == workload), None)


def row_of(workload: str, strategy: str, *, second_run: bool = False) -> PublishedRow | None:
    """Return the row of a strategy with a workload; None if nothing was published."""
    table = table_of(workload)
    wanted = (strategy, second_run)
    rows = table.rows if table else ()
    return next((row for row in rows if (row.strategy, row.second_run) == wanted), None)


def compare(summary: Summary, ours: str = "simulated") -> Table | None:
    """Return a table of the published figures, ours by the name of their run, and ours over theirs.

    Several published runs show as a mean and a range. None if nothing was published.
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
