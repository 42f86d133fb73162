"""The page of a run."""

from __future__ import annotations

import re
from pathlib import Path

from extproc.lab.bench import page
from extproc.lab.bench.results import read
from extproc.lab.bench.rows import medians
from extproc.lab.bench.targets import FAST
from tests.lab.bench.results_made_up import figures, made_up

DOCS = Path(__file__).parents[3] / "docs"


def test_a_file_preserves_the_figures(tmp_path: Path) -> None:
    results = made_up(FAST)
    results.write(tmp_path / "figures.json")
    again = read(tmp_path / "figures.json")
    assert again.rows == results.rows
    assert again.held == results.held
    assert page.text(again) == page.text(results)


def test_the_page_is_written_next_to_its_figures(tmp_path: Path) -> None:
    made_up().write(tmp_path / page.FIGURES)
    page.write(tmp_path)
    written = (tmp_path / page.PAGE).read_text()
    assert not re.search(r"\$\w", written)
    assert f"| 1 kB, 32 | {FAST} | 6,000 | 0.60 | 0.50 | 1.50 | 100 | 60 | 2.67 |" in written
    assert f"| 8,000 | {FAST} | 8,000 | 50, 90, 70 | 5.0 |" in written
    assert "not measured" not in written


def test_the_committed_page_matches_its_figures() -> None:
    same = (DOCS / page.PAGE).read_text() == page.text(read(DOCS / page.FIGURES))
    assert same, "run `python -m extproc.lab.bench.page`"


def test_rounds_give_medians_and_the_sum_of_failures() -> None:
    rounds = [figures(1, 10, None), figures(3, 20, None), figures(2, 90, None)]
    found = medians(rounds)
    assert (found.per_second, found.proxy_us, found.sidecar_us) == (2, 20, None)
    assert found.failed == 0
