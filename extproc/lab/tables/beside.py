"""Published figures, simulated ones and their ratio, the way all the tables have them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from extproc.lab.measures import charts
from extproc.lab.tables.cells import Cell, Figures, simulated
from extproc.lab.tables.markdown import against, percent, table

_DRAWN = {"mean_ttft_ms": "mean TTFT", "total_token_throughput": "throughput"}

Ours = Callable[[Cell, str], float]
"""A cell's figure, simulated."""


def beside(
    cells: Sequence[Cell],
    names: Mapping[str, Callable[[Cell], str]],
    metrics: Mapping[str, str],
    ours: Ours,
    hits: Figures | None = None,
) -> str:
    """A line for each cell; `names` and `metrics` head the columns."""
    headings = list(names)
    for label in metrics.values():
        headings += [label, "simulated", "ratio"]
    lines = []
    for cell in cells:
        line = [name(cell) for name in names.values()]
        for metric in metrics:
            line += against(cell.row.value(metric), ours(cell, metric))
        lines.append([*line, percent(hits[cell].hit_rate)] if hits else line)
    return table([*headings, "hits"] if hits else headings, lines, left=len(names))


def draw(cells: Sequence[Cell], figures: Figures, directory: Path) -> list[tuple[str, Path]]:
    """The two charts that the publications have, with titles: bars by load and strategy."""
    name = cells[0].workload.rpartition("-")[0]
    drawn = []
    for metric, quantity in _DRAWN.items():
        path = directory / f"{name}-{metric.replace('_', '-')}.png"
        title = f"{name}: {quantity} by concurrency and strategy"
        _chart(cells, metric, title, path, figures)
        drawn.append((title, path))
    return drawn


def _chart(cells: Sequence[Cell], metric: str, title: str, path: Path, figures: Figures) -> None:
    """The published bars stand beside ours."""
    ours: dict[str, list[float | None]] = {}
    theirs: dict[str, list[float | None]] = {}
    for cell in cells:
        ours.setdefault(cell.strategy, []).append(simulated(metric, figures[cell]))
        theirs.setdefault(cell.strategy, []).append(cell.row.value(metric))
    loads = list(dict.fromkeys(cell.load for cell in cells))
    time = metric.endswith("_ms")
    charts.bars(path, title, "ms" if time else "tokens/s", loads, ours, theirs, log=time)
