"""Comparisons of strategies, as a table and as JSON."""

from __future__ import annotations

import json
from collections.abc import Callable
from io import StringIO

import numpy as np
import pytest
from rich.console import Console
from rich.table import Table

from extproc.lab.measures.comparison import as_json, table
from extproc.lab.measures.run import Run
from extproc.lab.measures.serving import summarize

MakeRun = Callable[..., Run]


def lines(shown: Table) -> list[str]:
    console = Console(file=StringIO(), width=100)
    console.print(shown)
    assert isinstance(console.file, StringIO)
    return console.file.getvalue().splitlines()


def test_ratios_compare_with_the_first_row(make_run: MakeRun) -> None:
    slow = summarize(make_run(strategy="Random", seconds=20.0, sent=[-1.0, 0.0, 0.0, 0.0]))
    fast = summarize(make_run())
    text = lines(table([slow, fast]))
    random, prefix_hash = (row.split() for row in text if "100" in row or "50%" in row)
    assert random == ["Random", "1,583", "1,500", "1,990", "214.3", "31", "0.15", "50%", "1.33",
                      "1.00", "1.000"]  # fmt: skip
    assert prefix_hash == ["PrefixHash", "583", "500", "990", "214.3", "62", "0.30", "50%", "1.33",
                           "2.00", "0.368"]  # fmt: skip


def test_fits_100_columns_with_any_figures(make_run: MakeRun) -> None:
    late = np.array([900.0, 950.0, 999.0, np.nan])
    many = summarize(
        make_run(strategy="QueueKVCache", first=late, last=late, output_tokens=[10**6] * 4)
    )
    text = lines(table([many, many]))
    assert not any("…" in line for line in text)
    assert max(len(line.rstrip()) for line in text) <= 100


def test_counts_failures_and_marks_unknown_figures(make_run: MakeRun, failed_run: Run) -> None:
    text = lines(table([summarize(failed_run), summarize(make_run())]))
    assert "failed requests: PrefixHash 4, PrefixHash 1" in "\n".join(text)
    row = next(line.split() for line in text if line.strip().startswith("PrefixHash"))
    # The cached tokens of two requests are known, answered or not.
    assert row == ["PrefixHash", "-", "-", "-", "-", "-", "-", "50%", "-", "-", "-"]


def test_no_caption_without_failures(make_run: MakeRun) -> None:
    fine = [1.5, 2.0, 3.25, 4.0]
    assert table([summarize(make_run(first=fine, last=fine))]).caption is None


def test_json_has_none_for_nan_and_plain_types(make_run: MakeRun, failed_run: Run) -> None:
    notes = {
        "preemptions": np.int64(3),
        "waits": np.array([0.5, np.nan]),
        "by_endpoint": {0: (1, 2)},
        "engine": object,
    }
    document = as_json(summarize(make_run(notes=notes)))
    assert json.loads(json.dumps(document, allow_nan=False)) == document
    assert document["mean_tpot_ms"] == pytest.approx(300)
    assert document["notes"]["preemptions"] == 3
    assert document["notes"]["waits"] == [0.5, None]
    assert document["notes"]["by_endpoint"] == {"0": [1, 2]}
    nothing = as_json(summarize(failed_run))
    assert nothing["mean_ttft_ms"] is None
    assert nothing["load_spread"] is None
    json.dumps(nothing, allow_nan=False)
