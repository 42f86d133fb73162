"""Targets on the page on prefix caches: verdicts, summary and misses."""

from __future__ import annotations

import pytest

from extproc.lab.tables import prefix_misses
from extproc.lab.tables.book import Book
from extproc.lab.tables.contenders import OURS, YARDSTICK
from extproc.lab.tables.prefix_caches import TASKS, text
from extproc.lab.tables.prefix_misses import misses
from extproc.lab.tables.prefix_trials import sidecar_trials
from extproc.lab.tables.prefix_verdict import (
    TARGETS,
    against_best,
    against_yardstick,
    ahead,
    near_oracle,
    summary,
    verdicts,
    with_four,
)
from extproc.lab.tables.scenes import SCENES
from extproc.lab.tables.trials import Figures, Trial, key
from tests.lab.tables.made_up_book import USUAL, rows, whole_book


@pytest.fixture
def book() -> Book:
    """Return a book with all results."""
    return whole_book()


def found(ours: Figures, best: Figures) -> dict[str, Figures]:
    return {"LMetric": best, YARDSTICK: {**USUAL, "mean_ttft_ms": 200.0}, OURS: ours}


class TestTargets:
    @pytest.mark.parametrize(
        ("metric", "figure", "said"),
        [
            ("mean_ttft_ms", 105.0, "yes (1.050, LMetric)"),
            ("mean_ttft_ms", 105.1, "**no (1.051, LMetric)**"),
            ("p99_ttft_ms", 106.0, "**no (1.060, LMetric)**"),
            ("p99_ttft_ms", 50.0, "yes (0.500, LMetric)"),
            ("output_throughput", 98.0, "yes (0.980, LMetric)"),
            ("output_throughput", 97.0, "**no (0.970, LMetric)**"),
        ],
    )
    def test_compare_with_the_best_of_the_row(self, metric: str, figure: float, said: str) -> None:
        assert against_best(found({**USUAL, metric: figure}, USUAL), metric).text == said

    def test_ignore_variants_of_ours(self) -> None:
        row = {**found(USUAL, USUAL), f"{OURS}, as shipped": {**USUAL, "mean_ttft_ms": 50.0}}
        assert against_best(row, "mean_ttft_ms").text == "yes (1.000, LMetric)"

    @pytest.mark.parametrize(("figure", "said"), [(95.0, "yes"), (95.1, "no")])
    def test_ask_if_ours_is_ahead_of_all_others(self, figure: float, said: str) -> None:
        assert ahead(found({**USUAL, "mean_ttft_ms": figure}, USUAL)).text == said

    @pytest.mark.parametrize(
        ("ours", "said"), [(100.0, "yes (1.250, investing)"), (101.0, "**no (1.262, investing)**")]
    )
    def test_compare_with_the_best_rule_of_the_oracle(
        self, ours: float, said: str, book: Book
    ) -> None:
        book.note(Trial("saas", "Oracle:investing"), {**USUAL, "mean_ttft_ms": 80.0})
        book.note(Trial("saas", OURS), {**USUAL, "mean_ttft_ms": ours})
        assert near_oracle(book, "saas").text == said

    def test_count_a_published_rule_that_is_ahead_of_the_oracle_as_the_oracle(
        self, book: Book
    ) -> None:
        book.note(Trial("saas", "LMetric"), {**USUAL, "mean_ttft_ms": 50.0})
        assert near_oracle(book, "saas").text == "**no (2.000, LMetric)**"

    def test_leave_out_the_oracle_if_a_rule_is_missing(self, book: Book) -> None:
        book.keep([task for task in TASKS if key(task) != "saas | Oracle:investing | seed 0"])
        assert near_oracle(book, "saas").text == ""
        assert not any(row.startswith("| saas | Oracle,") for row in rows(text(book)))

    def test_count_the_rows_that_meet_them(self, book: Book) -> None:
        for trial in Trial("saas", OURS).repeated:
            book.note(trial, {**USUAL, "p99_ttft_ms": 106.0, "mean_ttft_ms": 94.0})
        counts = [row.split(" | ")[1] for row in rows(summary(book, ("saas", "hot-prefix")))[2:]]
        assert counts == ["2 of 2", "1 of 2", "2 of 2", "1 of 2", "2 of 2", "0 of 0", "0 of 0"]
        assert len(counts) == len(TARGETS)

    def test_count_the_rows_in_which_the_oracle_meets_them(self, book: Book) -> None:
        book.note(
            Trial("saas", "Oracle:investing"),
            {**USUAL, "mean_ttft_ms": 95.0, "output_throughput": 97.0},
        )
        counts = [row.split(" | ")[2] for row in rows(summary(book, ("saas", "hot-prefix")))[2:]]
        assert counts == ["2 of 2", "2 of 2", "1 of 2", "1 of 2", "", "", ""]
        book.keep([task for task in TASKS if key(task) != "saas | Oracle:investing | seed 0"])
        counts = [row.split(" | ")[2] for row in rows(summary(book, ("saas", "hot-prefix")))[2:]]
        assert counts == ["1 of 1", "1 of 1", "1 of 1", "0 of 1", "", "", ""]

    def test_compare_with_the_yardstick_at_saturation(self) -> None:
        better = found(USUAL, USUAL)
        assert against_yardstick("saas at 1.25", better).text == "yes (2.00 x shorter, target 2 x)"
        worse = found({**USUAL, "mean_ttft_ms": 101.0}, USUAL)
        assert against_yardstick("mooncake at 3", worse).text.startswith("**no (1.98 x shorter")
        assert against_yardstick("codegen at 2", worse).text.startswith("yes (1.98 x")
        assert against_yardstick("lora-4", worse).text == "1.98 x shorter"

    @pytest.mark.parametrize(
        ("with_four_sidecars", "said"),
        [
            (110.0, "yes (95%)"),
            (111.0, "**no (94%)**"),
            (320.0, "**no (-10%)**"),
            (90.0, "yes (105%)"),
        ],
    )
    def test_require_most_of_the_advantage_with_four_sidecars(
        self, with_four_sidecars: float, said: str, book: Book
    ) -> None:
        # 300 ms compared with 100.
        for trial in Trial("saas at 1.25", OURS, sidecars=4, share=25).repeated:
            book.note(trial, {**USUAL, "mean_ttft_ms": with_four_sidecars})
        assert with_four(book, "saas at 1.25").text == said

    def test_without_an_advantage_there_is_no_verdict(self, book: Book) -> None:
        for trial in sidecar_trials("saas at 1.25"):
            for one in trial.repeated:
                book.note(one, USUAL)
        assert with_four(book, "saas at 1.25").text == "no advantage"

    def test_list_the_misses_with_their_causes(
        self, book: Book, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(prefix_misses, "CAUSES", {"saas": "bursts"})
        assert misses(book, SCENES) == "All rows meet these targets."
        for scene in ("saas", "hot-prefix"):
            for trial in Trial(scene, OURS).repeated:
                book.note(trial, {**USUAL, "p99_ttft_ms": 106.0})
        saas, hot = rows(misses(book, SCENES))[2:]
        assert saas.startswith("| saas | p99 TTFT: 1.060, ")
        assert saas.endswith(" | bursts |")
        assert hot.endswith(" | not known |")

    def test_have_one_row_for_each_workload(self, book: Book) -> None:
        lines = rows(verdicts(book, SCENES))[2:]
        assert [line.split(" | ")[0].removeprefix("| ") for line in lines] == list(SCENES)
