"""Tables of filter chains with LoRA adapters on A10s; only the order of strategies matters."""

from __future__ import annotations

from dataclasses import replace

from extproc.lab.tables.cells import Cell, Figures, published_cells, simulated
from extproc.lab.tables.claims import LORA
from extproc.lab.tables.comparison import compare
from extproc.lab.tables.markdown import table, yes

SEEDS = (0, 1, 2)
"""Chance is large in these runs: published runs of the same row differ by a quarter."""

WORKLOADS = ("lora-0", "lora-10", "lora-4")
CELLS = [
    replace(cell, seed=seed)
    for workload in WORKLOADS
    for cell in published_cells(workload)
    for seed in SEEDS
]

_METRICS = {
    "requests_per_minute": "requests/min",
    "mean_ttft_ms": "mean TTFT (ms)",
    "p95_ttft_ms": "P95 TTFT (ms)",
    "mean_time_per_token_ms": "mean time per token (ms)",
    "mean_e2el_ms": "mean latency (ms)",
}


def ours(workload: str, strategy: str, metric: str, figures: Figures) -> float:
    """Return the mean over the seeds."""
    return simulated(metric, *(figures[Cell(workload, strategy, seed)] for seed in SEEDS))


def compared(workload: str, figures: Figures) -> str:
    """Compare published and simulated figures. Several published runs count by their mean."""
    names = {"strategy": lambda cell: cell.strategy, "published as": lambda cell: cell.row.label}
    return compare(
        published_cells(workload),
        names,
        _METRICS,
        lambda cell, metric: ours(cell.workload, cell.strategy, metric, figures),
    )


def claims(workload: str, figures: Figures) -> str:
    """Show for each published claim if it holds in the simulation."""
    rows = [
        [claim.text, yes(claim.holds(lambda name, metric: ours(workload, name, metric, figures)))]
        for claim in LORA[workload]
    ]
    return table(["published", "simulated too"], rows, left=2)
