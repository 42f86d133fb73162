"""The page of published and simulated tables: it matches this code; its verdicts."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from extproc.lab.measures.published import tables
from extproc.lab.measures.run import Run
from extproc.lab.measures.serving import Summary, summarize
from extproc.lab.tables import chat, lora, page, threads
from extproc.lab.tables.cells import Cell, simulate_cells, simulated
from extproc.lab.tables.claims import LORA
from tests.extent import extent

DOCS = Path(__file__).parents[3] / "docs"
PAGE = (DOCS / "benchmarks.md").read_text()

ONE = np.array([1.0])
COUNT = np.array([1])
NOTHING = summarize(
    Run("w", "s", 1.0, ONE, ONE, ONE, ONE, COUNT, COUNT, COUNT, COUNT, np.array([]))
)


def published(cell: Cell) -> Summary:
    """Return a simulation with exactly the published figures."""
    metrics: dict[str, Any] = {
        name: cell.published(name)
        for name in cell.row.metrics
        if name in Summary.__dataclass_fields__
    }
    return replace(NOTHING, **metrics)


def rows(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("| ")]


class TestCommittedPage:
    def test_matches_new_simulations(self) -> None:
        """Check one or two of its rows; `make tables` writes them all."""
        names = ("PrefixHash", "LeastLoad")[: extent(1, 2)]
        cells = [Cell("kubeai-chat-8000", name) for name in names]
        figures = simulate_cells(cells)
        for row in rows(chat.table_of(cells, figures))[2:]:
            assert row in PAGE, "run `make tables`"

    def test_has_every_published_row(self) -> None:
        for table in tables():
            for row in table.rows:
                cell = Cell(table.workload, row.strategy)
                assert any(one.workload == cell.workload for one in page.CELLS)
                assert re.search(rf"^\|.*\| {row.strategy} \||^\| {row.strategy} \|", PAGE, re.M)

    def test_has_its_charts(self) -> None:
        charts = re.findall(r"!\[.*\]\((.*)\)", PAGE)
        assert len(charts) == 4
        for chart in charts:
            assert (DOCS / chart).stat().st_size > 5_000

    def test_matches_the_template(self) -> None:
        text = (Path(page.__file__).with_name("page.md")).read_text()
        for paragraph in text.split("\n\n"):
            if "$" not in paragraph:
                assert paragraph.strip() in PAGE, "run `make tables`"


class TestTargets:
    @pytest.mark.parametrize(
        ("metric", "factor", "met"),
        [
            ("mean_itl_ms", 1.09, True),
            ("mean_itl_ms", 1.11, False),
            ("total_token_throughput", 0.91, True),
            ("total_token_throughput", 0.89, False),
            ("mean_ttft_ms", 1.49, True),
            ("mean_ttft_ms", 0.66, False),
        ],
    )
    def test_for_the_fitted_rows(self, metric: str, factor: float, met: bool) -> None:
        cell = Cell("kubeai-chat-800", "Random")
        changed: dict[str, Any] = {metric: factor * cell.published(metric)}
        ours = replace(published(cell), **changed)
        assert chat.within_targets(cell, {cell: ours}) is met

    @pytest.mark.parametrize(("factor", "met"), [(1.19, True), (0.81, True), (1.21, False)])
    def test_for_the_held_out_rows(self, factor: float, met: bool) -> None:
        cell = Cell("kubeai-threads-300", "LeastLoad")
        tokens = factor * cell.published("total_token_throughput")
        ours = replace(published(cell), total_token_throughput=tokens)
        assert threads.within_20_percent(cell, {cell: ours}) is met

    def test_the_published_order_is_right(self) -> None:
        figures = {cell: published(cell) for cell in threads.CELLS}
        for metric in ("mean_ttft_ms", "total_token_throughput"):
            assert threads.order_is_right(metric, 1_200, figures)

    def test_another_order_is_wrong(self) -> None:
        figures = {cell: published(cell) for cell in threads.CELLS}
        one, other = (Cell("kubeai-threads-1200", name) for name in ("PrefixHash", "LeastLoad"))
        figures[one], figures[other] = figures[other], figures[one]
        assert not threads.order_is_right("total_token_throughput", 1_200, figures)

    def test_similar_published_figures_have_no_order(self) -> None:
        figures = {cell: published(cell) for cell in threads.CELLS}
        # 128.5 and 126.9 ms.
        one, other = (Cell("kubeai-threads-300", name) for name in ("PrefixHash", "Random"))
        figures[one], figures[other] = figures[other], figures[one]
        assert threads.order_is_right("mean_ttft_ms", 300, figures)


class TestClaims:
    @pytest.mark.parametrize("workload", lora.WORKLOADS)
    def test_hold_for_the_published_figures(self, workload: str) -> None:
        for claim in LORA[workload]:
            assert claim.holds(lambda name, metric: Cell(workload, name).published(metric)), claim

    def test_figures_are_the_mean_over_the_seeds(self) -> None:
        cells = [Cell("lora-4", "LowLatency", seed) for seed in lora.SEEDS]
        figures = {cell: replace(NOTHING, mean_ttft_ms=100.0 * (cell.seed + 1)) for cell in cells}
        assert lora.ours("lora-4", "LowLatency", "mean_ttft_ms", figures) == 200


def test_a_missing_figure_is_nan() -> None:
    assert np.isnan(simulated("kv_cache_usage", NOTHING))
