"""Cells of the tables: one simulation each, run once."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from concurrent.futures import as_completed
from dataclasses import dataclass, replace
from statistics import fmean

from rich.progress import track

from extproc.core.schema import LoadBalancingSpec
from extproc.lab.engine import profile
from extproc.lab.measures.published import PublishedRow, row_of, table_of
from extproc.lab.measures.serving import Summary, summarize
from extproc.lab.simulation.simulation import Scenario, simulate
from extproc.lab.simulation.workers import workers
from extproc.lab.workloads import Options, named


@dataclass(frozen=True)
class Cell:
    """A strategy on a workload, with the differences from the published run."""

    workload: str
    strategy: str
    seed: int = 0
    ideal_client: bool = False
    kv_tokens: int | None = None
    real_conversations: bool = False

    @property
    def load(self) -> str:
        """The number of clients or threads at the end of the workload's name."""
        return f"{int(self.workload.rpartition('-')[2]):,}"

    @property
    def row(self) -> PublishedRow:
        """The published row of the same workload and strategy."""
        row = row_of(self.workload, self.strategy)
        assert row is not None, f"nothing was published of {self}"
        return row

    def published(self, metric: str) -> float:
        """Return a figure of the published row."""
        value = self.row.value(metric)
        assert value is not None, f"{metric} of {self} was not published"
        return value


Figures = Mapping[Cell, Summary]


def published_cells(workload: str) -> list[Cell]:
    """Return a cell for each published strategy, in the publication's order."""
    table = table_of(workload)
    assert table is not None, f"nothing was published of {workload}"
    return [Cell(workload, name) for name in dict.fromkeys(row.strategy for row in table.rows)]


def simulate_cells(cells: Iterable[Cell]) -> dict[Cell, Summary]:
    """Simulate the cells on all cores."""
    wanted = list(dict.fromkeys(cells))
    with workers(len(wanted)) as pool:
        runs = {pool.submit(_simulate, cell): cell for cell in wanted}
        done = track(as_completed(runs), "simulating", total=len(runs))
        found = {runs[run]: run.result() for run in done}
    return {cell: found[cell] for cell in wanted}


def scenario(cell: Cell) -> Scenario:
    """Return the scenario of a cell."""
    options = Options(seed=cell.seed, real_conversations=cell.real_conversations)
    workload = named(cell.workload, options)
    engine = profile.named(workload.profile)
    if cell.kv_tokens is not None:
        engine = replace(engine, kv_tokens=cell.kv_tokens)
    balancing = LoadBalancingSpec.model_validate({"strategy": cell.strategy})
    limited = workload.single_threaded_client and not cell.ideal_client
    return Scenario.of(workload, engine, balancing, limited_client=limited, seed=cell.seed)


def _simulate(cell: Cell) -> Summary:
    return summarize(simulate(scenario(cell)))


def simulated(metric: str, *summaries: Summary) -> float:
    """Return a figure of a summary, or its mean over several summaries."""
    values = [summary.metric(metric) for summary in summaries]
    return fmean(math.nan if value is None else value for value in values)
