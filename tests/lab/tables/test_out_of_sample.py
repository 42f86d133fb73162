"""The page on random trials: targets, rows and command."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from types import SimpleNamespace

import pytest

from extproc.lab.tables import __main__ as command
from extproc.lab.tables import out_of_sample
from extproc.lab.tables.contenders import OURS
from extproc.lab.tables.out_of_sample import (
    ALL,
    ALONE,
    BEHIND_SEVERAL,
    FIGURES,
    PAGE,
    RULES,
    SHARING,
    Draws,
    Task,
    summary,
    text,
)
from extproc.lab.tables.trials import METRICS, Figures

DOCS = Path(__file__).parents[3] / "docs"

USUAL: Figures = dict.fromkeys(METRICS, 100.0)


def draws(*ours: float, metric: str = "mean_ttft_ms") -> Draws:
    """Return trials in which all rules and oracles have 100, with these figures of ours."""
    found = Draws()
    for number, figure in enumerate(ours):
        found.descriptions[number] = f"{number}: chats"
        for name in ALL:
            found.figures[Task(number, name)] = USUAL
        found.figures[Task(number, OURS)] = {**USUAL, metric: figure}
    return found


def rows(page: str) -> list[str]:
    return [line for line in page.splitlines() if line.startswith("| ")]


@pytest.mark.skipif(not (DOCS / PAGE).exists(), reason="make tables has not written it yet")
def test_the_committed_page_matches_its_figures() -> None:
    same = (DOCS / PAGE).read_text() == text(Draws.read(DOCS / FIGURES))
    assert same, "run `python -m extproc.lab.tables --random 40 --only`"


class TestTargets:
    def test_show_median_90th_percentile_and_worst(self) -> None:
        (_, _, mean, *_) = rows(summary(draws(*[90.0] * 10, 119.0)))
        assert mean == "| mean TTFT | 0.900 | 0.900 | 1.190 | yes |"

    @pytest.mark.parametrize(
        "ours",
        [(96.0,), (90.0, 90.0, 90.0, 107.0, 107.0), (*[90.0] * 20, 121.0)],
        ids=["median", "90th", "worst"],
    )
    def test_are_missed_if_one_limit_is(self, ours: tuple[float, ...]) -> None:
        (_, _, mean, p99, *_) = rows(summary(draws(*ours)))
        assert mean.endswith("| **no** |")
        assert p99.endswith("| **no** |")  # 1.0 is not ahead

    def test_compare_throughput_with_the_highest(self) -> None:
        found = draws(80.0, 120.0, metric="output_throughput")
        (_, _, _, _, tokens, *_) = rows(summary(found))
        assert tokens == "| tokens/s | 1.000 | 0.840 | 0.800 |  |"


class TestOracle:
    def test_has_the_figures_of_its_rule_with_the_shortest_mean(self) -> None:
        found = draws(90.0)
        found.figures[Task(0, "Oracle:soonest")] = {
            **USUAL,
            "mean_ttft_ms": 80.0,
            "p99_ttft_ms": 130.0,
        }
        found.figures[Task(0, "Oracle:balanced:unsynchronized")] = {**USUAL, "mean_ttft_ms": 90.0}
        (*_, mean, p99, without) = rows(summary(found))
        assert without.startswith("| its mean TTFT without the ends of steps | 0.900 |")
        assert mean == "| the oracle's mean TTFT | 0.800 | 0.800 | 0.800 |  |"
        assert p99 == "| the oracle's p99 TTFT | 1.300 | 1.300 | 1.300 |  |"

    def test_may_follow_a_published_rule(self) -> None:
        found = draws(90.0)
        found.figures[Task(0, "Sticky")] = {**USUAL, "mean_ttft_ms": 50.0}
        assert "| the oracle's mean TTFT | 1.000 |" in summary(found)

    def test_is_in_the_row_of_each_trial(self) -> None:
        found = draws(90.0)
        found.figures[Task(0, "Oracle:soonest")] = {**USUAL, "mean_ttft_ms": 45.0}
        (*_, row) = rows(text(found))
        assert row == f"| 0: chats | {RULES[0]} | 100 | 90.0 | 0.900 | 1.000 | 1.000 | 0.450 |"


class TestSeveralSidecars:
    def draws(self, alone: float, sharing: float, metric: str = "mean_ttft_ms") -> Draws:
        """Return a trial in which all rules have 100, with these figures of ours."""
        found = draws(90.0)
        for names in BEHIND_SEVERAL:
            found.figures[Task(1, *names)] = USUAL
        found.figures[Task(1, OURS, ALONE)] = {**USUAL, metric: alone}
        found.figures[Task(1, OURS, SHARING)] = {**USUAL, metric: sharing}
        return found

    def test_share_nothing_or_share_against_rules_that_share_nothing(self) -> None:
        page = text(self.draws(80.0, 70.0))
        assert "| mean TTFT, nothing is shared | 0.800 | 0.800 | 0.800 |" in page
        assert "| mean TTFT, PrefixCache shares | 0.700 | 0.700 | 0.700 |" in page

    def test_are_compared_with_the_best_rule(self) -> None:
        found = self.draws(80.0, 70.0)
        found.figures[Task(1, "Sticky", ALONE)] = {**USUAL, "mean_ttft_ms": 50.0}
        assert "| mean TTFT, nothing is shared | 1.600 |" in text(found)

    def test_do_not_change_the_trials_with_one(self) -> None:
        assert summary(self.draws(80.0, 70.0)) == summary(draws(90.0))
        assert self.draws(80.0, 70.0).complete == [0]

    def test_need_all_figures(self) -> None:
        found = self.draws(80.0, 70.0)
        del found.figures[Task(1, OURS, SHARING)]
        assert found.complete_behind_several == []
        assert "*Not simulated yet.*" in text(found)

    def test_are_the_same_from_the_file(self, tmp_path: Path) -> None:
        found = self.draws(80.0, 70.0)
        found.write(tmp_path / FIGURES)
        assert text(Draws.read(tmp_path / FIGURES)) == text(found)


class TestPage:
    def test_has_a_row_for_each_trial(self) -> None:
        found = draws(90.0, 50.0)
        found.figures[Task(1, "Sticky")] = {**USUAL, "mean_ttft_ms": 40.0}
        assert rows(text(found))[-2:] == [
            f"| 0: chats | {RULES[0]} | 100 | 90.0 | 0.900 | 1.000 | 1.000 | 1.000 |",
            "| 1: chats | Sticky | 40.0 | 50.0 | 1.250 | 1.000 | 1.000 | 1.000 |",
        ]

    def test_leaves_out_trials_without_all_figures(self) -> None:
        found = draws(90.0, 50.0)
        del found.figures[Task(1, "Sticky")]
        assert found.complete == [0]

    def test_is_the_same_from_the_file(self, tmp_path: Path) -> None:
        found = draws(90.0, 50.0)
        found.write(tmp_path / FIGURES)
        assert text(Draws.read(tmp_path / FIGURES)) == text(found)


class TestCommand:
    @pytest.fixture
    def tried(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Task]:
        """Collect the tasks instead of simulating them."""
        found: list[Task] = []

        def simulate(tasks: Collection[Task], known: Draws, path: Path) -> None:
            found.extend(tasks)
            known.figures.update(dict.fromkeys(tasks, USUAL))

        monkeypatch.setattr(out_of_sample, "_simulate", simulate)
        # To draw a trial takes half a second.
        drawn = SimpleNamespace(description="chats on eight engines")
        monkeypatch.setattr(out_of_sample, "random_trial", lambda number: drawn)
        monkeypatch.chdir(tmp_path)
        (tmp_path / "docs").mkdir()
        return found

    def test_runs_all_contenders_on_the_trials(
        self, tried: list[Task], tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert command.main(["--random", "2"]) == 0
        alone = [Task(number, name) for number in range(2) for name in ALL]
        several = [Task(number, *names) for number in (6, 7) for names in BEHIND_SEVERAL]
        assert tried == alone + several
        page = (tmp_path / "docs" / PAGE).read_text()
        assert page.count("| chats on eight engines |") == 2
        assert "| mean TTFT | 1.000 |" in capsys.readouterr().out

    def test_runs_missing_or_named_tasks_only(self, tried: list[Task], tmp_path: Path) -> None:
        command.main(["--random", "1"])
        tried.clear()
        command.main(["--random", "2", "--missing"])
        assert {task.number for task in tried if not task.sidecars} == {1}
        assert {task.number for task in tried if task.sidecars} == {6, 7}
        tried.clear()
        command.main(["--random", "2", "--only", f"| {OURS}"])
        alone = [Task(0, OURS), Task(1, OURS)]
        several = [Task(n, OURS, sidecars) for n in (6, 7) for sidecars in (ALONE, SHARING)]
        assert tried == alone + several

    @pytest.mark.parametrize("other", [["benchmarks"], ["--trace", "trace.jsonl"]])
    def test_takes_no_pages(
        self, other: list[str], tried: list[Task], capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert command.main(["--random", "2", *other]) == 2
        assert "--random takes neither a page nor a trace" in capsys.readouterr().err
        assert not tried
