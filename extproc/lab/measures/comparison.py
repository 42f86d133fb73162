"""Comparison of strategies, as a table and as JSON."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
from rich import box
from rich.table import Table

from extproc.lab.measures.serving import Summary
from extproc.lab.measures.times import ratio

_COLUMNS = (
    *("strategy", "TTFT ms\nmean", "\np50", "\np99", "ITL ms\nmean", "total\ntok/s", "req/s"),
    *("cache\nhits", "spread", "tok/s\nx first", "TTFT\nx first"),
)


def table(summaries: Sequence[Summary]) -> Table:
    """Return a table of 100 columns with a row for each strategy.

    The last two columns compare with the first row. A caption counts failures, if any.
    """
    title = ", ".join(dict.fromkeys(summary.workload for summary in summaries))
    failures = [f"{one.strategy} {one.failed:,}" for one in summaries if one.failed]
    caption = "failed requests: " + ", ".join(failures) if failures else None
    rows = Table(
        title=title, caption=caption, box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True
    )
    for column in _COLUMNS:
        rows.add_column(column, justify="left" if column == "strategy" else "right", no_wrap=True)
    for summary in summaries:
        rows.add_row(*_cells(summary, summaries[0]))
    return rows


def as_json(summary: Summary) -> dict[str, Any]:
    """Return the figures by name for `json.dumps`; unknown figures are None, never NaN."""
    return {name: _plain(value) for name, value in asdict(summary).items()}


def _cells(summary: Summary, first: Summary) -> tuple[str, ...]:
    return (
        summary.strategy,
        _shown(summary.mean_ttft_ms, ",.0f"),
        _shown(summary.median_ttft_ms, ",.0f"),
        _shown(summary.p99_ttft_ms, ",.0f"),
        _shown(summary.mean_itl_ms, ",.1f"),
        _shown(summary.total_token_throughput, ",.0f"),
        _shown(summary.request_throughput, ",.2f"),
        _shown(summary.hit_rate, ".0%"),
        _shown(summary.load_spread, ".2f"),
        _shown(ratio(summary.total_token_throughput, first.total_token_throughput), ".2f"),
        _shown(ratio(summary.mean_ttft_ms, first.mean_ttft_ms), ".3f"),
    )


def _shown(value: float | None, form: str) -> str:
    return "-" if value is None or math.isnan(value) else format(value, form)


def _plain(value: Any) -> Any:
    """Return a value that JSON can represent; any other value becomes its text."""
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else None
        case dict():
            return {str(name): _plain(inner) for name, inner in value.items()}
        case list() | tuple():
            return [_plain(inner) for inner in value]
        case _:
            return str(value)
