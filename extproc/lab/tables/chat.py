"""Tables of KubeAI's benchmark page, to which the engine and the client are fitted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from extproc.lab.tables.cells import Cell, Figures, published_cells, simulated
from extproc.lab.tables.comparison import compare
from extproc.lab.tables.markdown import number, percent, table

LOADS = (800, 1_600, 3_200, 8_000)
FITTED = [cell for load in LOADS for cell in published_cells(f"kubeai-chat-{load}")]
_IDEAL = [replace(cell, ideal_client=True) for cell in FITTED]
_SEEDS = (1, 2)
_OTHER_SEEDS = [replace(cell, seed=seed) for seed in _SEEDS for cell in FITTED]
_CACHES = (58_000, 90_000, 180_000)
_TOP = published_cells("kubeai-chat-8000")
_SIZED = {
    (cell, tokens): replace(cell, kv_tokens=tokens, ideal_client=ideal)
    for ideal in (False, True)
    for tokens in _CACHES
    for cell in [replace(one, ideal_client=ideal) for one in _TOP]
}
_REAL = {
    (cell, ideal): replace(cell, real_conversations=True, ideal_client=ideal)
    for cell in _TOP
    for ideal in (False, True)
}
CELLS = [*FITTED, *_IDEAL, *_OTHER_SEEDS, *_SIZED.values(), *_REAL.values()]

_METRICS = {
    "mean_ttft_ms": "mean TTFT (ms)",
    "p99_ttft_ms": "P99 TTFT (ms)",
    "mean_itl_ms": "mean ITL (ms)",
    "total_token_throughput": "total tokens/s",
}


def within_targets(cell: Cell, figures: Figures) -> bool:
    """True if ITL and throughput are within 10 % and TTFT is within a factor of 1.5."""

    def ratio(metric: str) -> float:
        return simulated(metric, figures[cell]) / cell.published(metric)

    close = all(0.9 <= ratio(one) <= 1.1 for one in ("mean_itl_ms", "total_token_throughput"))
    return close and 1 / 1.5 <= ratio("mean_ttft_ms") <= 1.5


def table_of(cells: Sequence[Cell], figures: Figures) -> str:
    """Compare published and simulated figures of the most important metrics."""
    names = {"load": lambda cell: cell.load, "strategy": lambda cell: cell.strategy}
    return compare(cells, names, _METRICS, lambda cell, one: simulated(one, figures[cell]), figures)


def fitted(figures: Figures) -> str:
    """Compare the twelve rows, and count those within the targets."""
    met = sum(within_targets(cell, figures) for cell in FITTED)
    missed = Counter(
        f"{cell.load} {cell.strategy}" for cell in _OTHER_SEEDS if not within_targets(cell, figures)
    )
    again = len(_OTHER_SEEDS) - missed.total()
    weak = ", ".join(f"{row} ({times})" for row, times in missed.items())
    return (
        f"{table_of(FITTED, figures)}\n\n"
        f"ITL and throughput are within 10 % and mean TTFT is within a factor of 1.5 in {met} of "
        f"the {len(FITTED)} rows. The parameters were fitted with these prompts. With prompts "
        f"from {len(_SEEDS)} other seeds, {again} of {len(_OTHER_SEEDS)} rows are, all except "
        f"{weak}."
    )


def ideal(figures: Figures) -> str:
    """Compare the rows with those of a client without limits."""
    return table_of(_IDEAL, figures)


def sensitivities(figures: Figures) -> str:
    """Show the rows of 8,000 under other assumptions."""
    headings = ["", "strategy", "mean TTFT (ms)", "mean ITL (ms)", "total tokens/s", "hits"]
    rows = []

    def line(what: str, cell: Cell) -> None:
        ours = figures[cell]
        values = (ours.mean_ttft_ms, ours.mean_itl_ms, ours.total_token_throughput)
        rows.append([what, cell.strategy, *map(number, values), percent(ours.hit_rate)])

    for cell in _TOP:
        line("as fitted", cell)
    for cell in _TOP:
        line("ideal client", replace(cell, ideal_client=True))
    for (cell, tokens), sized in _SIZED.items():
        client = ", ideal client" if cell.ideal_client else ""
        line(f"KV cache of {tokens:,} tokens{client}", sized)
    for (_, without_limit), real in _REAL.items():
        client = ", ideal client" if without_limit else ""
        line(f"some 730 real conversations, each prompt once{client}", real)
    return table(headings, rows, left=2)
