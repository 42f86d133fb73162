"""Tables and charts of published figures, simulated figures and their ratio."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from extproc.lab.measures import charts
from extproc.lab.tables.cells import Cell, Figures, simulated
from extproc.lab.tables.markdown import against, percent, table

_DRAWN = {"mean_ttft_ms": "mean TTFT", "total_token_throughput": "throughput"}

Ours = Callable[[Cell, str], float]
"""The simulated figure of a cell, by metric."""


def compare(
    cells: Sequence[Cell],
    names: Mapping[str, Callable[[Cell], str]],
    metrics: Mapping[str, str],
    ours: Ours,
    hits: Figures | None = None,
) -> str:
    """Return a table with a line for each cell; `names` and `metrics` give the column headings."""
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
    """Draw the publication's two charts, bars by load and strategy, and return them with titles."""
    name = cells[0].workload.rpartition("-")[0]
    drawn = []
    for metric, quantity in _DRAWN.items():
        path = directory / f"{name}-{metric.replace('_', '-')}.png"
        title = f"{name}: {quantity} by concurrency and strategy"
        _chart(cells, metric, title, path, figures)
        drawn.append((title, path))
    return drawn


def _chart(cells: Sequence[Cell], metric: str, title: str, path: Path, figures: Figures) -> None:
    """Draw the simulated bars next to the published ones."""
    ours: dict[str, list[float | None]] = {}
    theirs: dict[str, list[float | None]] = {}
    for cell in cells:
        ours.setdefault(cell.strategy, []).append(simulated(metric, figures[cell]))
        theirs.setdefault(cell.strategy, []).append(cell.row.value(metric))
    loads = list(dict.fromkeys(cell.load for cell in cells))
    time = metric.endswith("_ms")
    charts.bars(path, title, "ms" if time else "tokens/s", loads, ours, theirs, log=time)
