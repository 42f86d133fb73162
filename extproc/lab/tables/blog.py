"""Tables of KubeAI's first post: time per token of long questions with short responses."""

from __future__ import annotations

from dataclasses import replace

from extproc.lab.tables.cells import Cell, Figures, published_cells, simulated
from extproc.lab.tables.comparison import compare
from extproc.lab.tables.markdown import number, table

WORKLOADS = ("blog-2xL4", "blog-8xH100")
_PUBLISHED = [cell for workload in WORKLOADS for cell in published_cells(workload)]
_CACHES = (18_000, 24_500, 32_000)
_SIZED = [
    replace(cell, kv_tokens=tokens) for tokens in _CACHES for cell in published_cells("blog-2xL4")
]
CELLS = [*_PUBLISHED, *_SIZED]

_METRICS = {
    "mean_time_per_token_ms": "mean time per token (ms)",
    "median_time_per_token_ms": "median (ms)",
    "duration": "seconds",
    "mean_session_ms": "mean thread (ms)",
}


def compared(figures: Figures) -> str:
    """Compare published and simulated figures."""
    names = {"scenario": lambda cell: cell.workload, "strategy": lambda cell: cell.strategy}
    return compare(
        _PUBLISHED, names, _METRICS, lambda cell, one: simulated(one, figures[cell]), figures
    )


def gains(figures: Figures) -> str:
    """Compare the gains in time per token of PrefixHash over LeastLoad."""
    metric = "mean_time_per_token_ms"
    rows = []
    for workload in WORKLOADS:
        slow, fast = (Cell(workload, name) for name in ("LeastLoad", "PrefixHash"))
        theirs = fast.published(metric) / slow.published(metric)
        ours = simulated(metric, figures[fast]) / simulated(metric, figures[slow])
        rows.append([workload, f"{theirs - 1:+.0%}", f"{ours - 1:+.0%}"])
    return table(["scenario", "published", "simulated"], rows)


def cliff(figures: Figures) -> str:
    """Show the effect of the L4s' cache size."""
    rows = [
        [f"{cell.kv_tokens:,}", cell.strategy, number(figures[cell].mean_time_per_token_ms)]
        for cell in _SIZED
    ]
    return table(["cache (tokens)", "strategy", "mean time per token (ms)"], rows, left=2)
