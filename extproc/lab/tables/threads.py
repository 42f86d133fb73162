"""Tables of KubeAI's multi-turn benchmark.

It is held out: the engine is the fitted one, with a cache size calculated from the memory.
"""

from __future__ import annotations

from itertools import combinations

from extproc.lab.measures.published import row_of
from extproc.lab.tables.cells import Cell, Figures, published_cells, simulated
from extproc.lab.tables.comparison import compare
from extproc.lab.tables.markdown import against, table, yes

LOADS = (300, 600, 1_200)
CELLS = [cell for load in LOADS for cell in published_cells(f"kubeai-threads-{load}")]

_METRICS = {
    "duration": "seconds",
    "mean_ttft_ms": "mean TTFT (ms)",
    "mean_itl_ms": "mean ITL (ms)",
    "total_token_throughput": "total tokens/s",
}

_TIE = 0.05
"""Published figures closer than this have no order: two runs of one row differ by more."""


def held_out(figures: Figures) -> str:
    """Compare published and simulated figures."""
    names = {"threads": lambda cell: cell.load, "strategy": lambda cell: cell.strategy}
    return compare(CELLS, names, _METRICS, lambda cell, one: simulated(one, figures[cell]), figures)


def second_run() -> str:
    """Compare the publication's rows with its own second run."""
    headings = ["strategy"]
    for label in _METRICS.values():
        headings += [label, "other run", "ratio"]
    rows = []
    for cell in published_cells("kubeai-threads-1200"):
        other = row_of(cell.workload, cell.strategy, second_run=True)
        if other is not None:
            line = [cell.strategy]
            for metric in _METRICS:
                line += against(cell.published(metric), other.value(metric))
            rows.append(line)
    return table(headings, rows)


def within_20_percent(cell: Cell, figures: Figures) -> bool:
    """True if the throughput is within 20 % of the published one."""
    metric = "total_token_throughput"
    return abs(simulated(metric, figures[cell]) / cell.published(metric) - 1) <= 0.2


def order_is_right(metric: str, load: int, figures: Figures) -> bool:
    """True if strategies that differ in the publication have the same order here."""
    cells = [cell for cell in CELLS if cell.workload == f"kubeai-threads-{load}"]
    for one, other in combinations(cells, 2):
        theirs = one.published(metric) / other.published(metric)
        ours = simulated(metric, figures[one]) / simulated(metric, figures[other])
        if abs(theirs - 1) > _TIE and (theirs < 1) != (ours < 1):
            return False
    return True


def verdict(figures: Figures) -> str:
    """Show for each load which targets are met."""
    rows = []
    for load in LOADS:
        cells = [cell for cell in CELLS if cell.workload == f"kubeai-threads-{load}"]
        far = [cell.strategy for cell in cells if not within_20_percent(cell, figures)]
        rows.append(
            [
                f"{load:,}",
                "yes" if not far else f"**not {', '.join(far)}**",
                yes(order_is_right("total_token_throughput", load, figures)),
                yes(order_is_right("mean_ttft_ms", load, figures)),
            ]
        )
    headings = ["threads", "throughput within 20 %", "its order right", "order of TTFT right"]
    return table(headings, rows, left=4)
