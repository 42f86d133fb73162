"""The page on prefix caches: it matches this code and its figures; its verdicts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from extproc.lab.tables import __main__ as command
from extproc.lab.tables import prefix_caches, prefix_tables
from extproc.lab.tables.book import Book
from extproc.lab.tables.contenders import CONTENDERS, ORACLES, OURS, YARDSTICK
from extproc.lab.tables.prefix_caches import FIGURES, PAGE, TASKS, text
from extproc.lab.tables.prefix_trials import scene_trials, sidecar_trials
from extproc.lab.tables.prefix_verdict import judged
from extproc.lab.tables.scenes import ADVERSARIES, SCENES, SHARED_PREFIXES, WORKLOADS
from extproc.lab.tables.trials import Figures, Task, Trial, key, outcome, scenario
from tests.lab.tables.made_up_book import USUAL, figures_of, rows, whole_book

DOCS = Path(__file__).parents[3] / "docs"
BOOK = Book.read(DOCS / FIGURES)

CHEAP = (Trial("hot-prefix", "LMetric"), Trial("one-prefix", OURS))


@pytest.fixture
def book() -> Book:
    """Return a book with all results."""
    return whole_book()


@pytest.mark.skipif(not (DOCS / PAGE).exists(), reason="make tables has not written it yet")
class TestCommittedPage:
    def test_matches_the_committed_figures(self) -> None:
        same = (DOCS / PAGE).read_text() == text(BOOK)
        assert same, "run `python -m extproc.lab.tables prefix-caches --only`"

    @pytest.mark.parametrize("page", [DOCS / "README.md", DOCS.parent / "README.md"], ids=str)
    def test_has_the_number_of_workloads_that_readmes_give(self, page: Path) -> None:
        number = len(judged(BOOK, SCENES))
        assert f"{number} simulated workloads" in page.read_text()

    @pytest.mark.parametrize("trial", CHEAP, ids=key)
    def test_matches_new_simulations(self, trial: Trial) -> None:
        written = BOOK.of(trial)
        assert written is None or outcome(trial) == pytest.approx(written, rel=1e-4), (
            "run `python -m extproc.lab.tables prefix-caches`"
        )


class TestPage:
    def test_has_every_contender_on_every_workload(self, book: Book) -> None:
        found = rows(text(book).split("## Several sidecars")[0])
        for scene in WORKLOADS:
            for name in CONTENDERS:
                assert sum(row.startswith(f"| {scene} | {name} |") for row in found) == 1
        for scene in SHARED_PREFIXES:
            for name in (OURS, "LMetric", "Oracle, soonest"):
                assert sum(row.startswith(f"| {scene} | {name} |") for row in found) == 1

    def test_counts_only_the_workloads_that_it_shows(self, book: Book) -> None:
        assert f" on {len(SCENES)} workloads." in text(book)
        book.keep([task for task in TASKS if "| PrefixCache | seed" not in key(task)])
        assert " on 0 workloads." in text(book)

    def test_shows_the_best_rule_of_the_oracle_last(self, book: Book) -> None:
        for scene in ("saas", "hot-prefix"):
            book.note(Trial(scene, "Oracle:balanced"), {**USUAL, "mean_ttft_ms": 50.0})
        found = rows(text(book))
        (row,) = (row for row in found if row.startswith("| saas | Oracle,"))
        assert row.startswith("| saas | Oracle, balanced | 50.0 | 100 | 100 | 100 | 100 |")
        assert found[found.index(row) - 1].startswith(f"| saas | {OURS} |")
        assert any(row.startswith("| hot-prefix | Oracle, balanced | 50.0 |") for row in found)

    def test_shows_figures_with_the_ceiling(self, book: Book) -> None:
        (row,) = (row for row in rows(text(book)) if row.startswith("| saas | Random |"))
        assert row == "| saas | Random | **100** | 100 | 100 | **100** | 100 | 50% | 62% | 1.25 |"

    def test_shows_ours_and_the_best_published_rule_for_each_adversary(self, book: Book) -> None:
        for trial in Trial("hot-prefix", "AIBrix").repeated:
            book.note(trial, {**USUAL, "mean_ttft_ms": 50.0})
        found = rows(text(book))
        for scene in ADVERSARIES:
            assert any(row.startswith(f"| {scene} | {OURS} |") for row in found)
        assert any(row.startswith("| hot-prefix | AIBrix | **50.0** |") for row in found)
        assert not any(row.startswith("| hot-prefix | Sticky |") for row in found)

    def test_shows_every_published_rule_behind_four_sidecars(self, book: Book) -> None:
        for trial in Trial("saas at 1.25", "LMetric", sidecars=4).repeated:
            book.note(trial, {**USUAL, "mean_ttft_ms": 77.0})
        (row,) = (row for row in rows(text(book)) if "| LMetric | **77.0** |" in row)
        assert row.startswith("| saas at 1.25 |")

    def test_leaves_out_missing_trials_with_a_note(self, book: Book) -> None:
        book.keep([task for task in TASKS if "mooncake" not in key(task)])
        page = text(book)
        assert not any(row.startswith("| mooncake") for row in rows(page))
        assert "**Some rows are missing.**" in page
        assert "mooncake at 2, mooncake at 3, mooncake at 4." in page
        assert any(row.startswith("| saas | Random |") for row in rows(page))

    def test_a_row_needs_every_seed(self, book: Book, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(SCENES, "saas", SCENES["saas"]._replace(seeds=(0, 1, 2, 3)))
        assert not any(
            row.startswith("| saas |") for row in rows(prefix_tables.compared(book, SCENES))
        )

    def test_has_no_note_if_nothing_is_missing(self, book: Book) -> None:
        assert "missing" not in text(book)

    def test_shows_means_over_the_seeds(self, book: Book, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(SCENES, "saas", SCENES["saas"]._replace(seeds=(0, 1, 2)))
        for seed in range(3):
            book.note(Trial("saas", OURS, seed=seed), {**USUAL, "p99_ttft_ms": 10.0 * (seed + 1)})
        mean = book.mean(Trial("saas", OURS))
        assert mean is not None
        assert mean["p99_ttft_ms"] == 20


class TestTrials:
    def test_have_unique_keys(self) -> None:
        assert len({key(task) for task in TASKS}) == len(TASKS)

    def test_in_several_tables_run_once(self) -> None:
        both = set(scene_trials("saas at 1.25")) & set(sidecar_trials("saas at 1.25"))
        assert both == {Trial("saas at 1.25", YARDSTICK), Trial("saas at 1.25", OURS)}

    def test_have_the_scenarios_of_their_tables(self) -> None:
        cut = scenario(Trial("codegen at 2", OURS, sidecars=4, shown="16 KiB"))
        assert (cut.sidecars, cut.routing.shown, cut.workload.name) == (
            4,
            (16_384, 16_384),
            "codegen",
        )
        plain = scenario(Trial("saas at 1.25", OURS, without="batch"))
        assert plain.routing.weights is not None
        assert plain.routing.weights.batch == 0
        big = scenario(Trial("200 endpoints", "Sticky"))
        assert (big.replicas, big.routing.published_rule, big.answers_shown) == (
            200,
            "Sticky",
            True,
        )
        assert scenario(Trial("a slow endpoint", OURS)).slow == {0: 3.0}
        assert scenario(Trial("from 2 to 16", OURS)).events

    def test_of_the_oracle_have_one_seed(self) -> None:
        seeds = {
            task.seed for task in TASKS if isinstance(task, Trial) and task.strategy in ORACLES
        }
        assert seeds == {0}


class TestCommand:
    @pytest.fixture
    def tried(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Task]:
        """Collect the tasks instead of simulating them."""
        found: list[Task] = []

        def try_all(
            tasks: list[Task], trace: Path | None, on_result: Callable[[Task, Figures], None]
        ) -> None:
            found.extend(tasks)
            # Each result is written at once, which would take seconds for all.
            for task in tasks[:50]:
                on_result(task, figures_of(task))

        monkeypatch.setattr(prefix_caches, "try_all", try_all)
        monkeypatch.chdir(tmp_path)
        (tmp_path / "docs").mkdir()
        return found

    def test_writes_the_page_and_its_figures(self, tried: list[Task], tmp_path: Path) -> None:
        assert command.main(["prefix-caches", "--only", "saas |"]) == 0
        page = (tmp_path / "docs" / PAGE).read_text()
        assert page == text(Book.read(tmp_path / "docs" / FIGURES))
        assert any(row.startswith("| saas | Random |") for row in rows(page))

    def test_can_write_the_page_without_simulating(self, tried: list[Task], tmp_path: Path) -> None:
        assert command.main(["prefix-caches", "--only"]) == 0
        assert not tried
        assert (tmp_path / "docs" / PAGE).read_text() == text(Book())

    def test_without_a_trace_leaves_out_its_trials(self, tried: list[Task]) -> None:
        command.main(["prefix-caches"])
        assert tried
        assert not any("mooncake" in key(task) for task in tried)

    def test_with_a_trace_runs_all_trials(self, tried: list[Task], tmp_path: Path) -> None:
        (tmp_path / "trace.jsonl").touch()
        command.main(["prefix-caches", "--trace", "trace.jsonl"])
        assert tried == list(TASKS)

    def test_keeps_other_results(self, tried: list[Task], tmp_path: Path) -> None:
        path = tmp_path / "docs" / FIGURES
        known, gone = Trial("mooncake at 2", OURS), Trial("saas", "Best")
        before = Book()
        before.note(known, USUAL)
        before.note(gone, USUAL)
        before.write(path)
        command.main(["prefix-caches", "--only", "lora-0 |"])
        after = Book.read(path)
        assert after.of(known) == USUAL
        assert after.of(gone) is None

    def test_can_run_missing_trials_only(self, tried: list[Task], tmp_path: Path) -> None:
        known, unknown = Trial("lora-0", OURS), Trial("lora-0", OURS, seed=1)
        before = Book()
        before.note(known, USUAL)
        before.write(tmp_path / "docs" / FIGURES)
        command.main(["prefix-caches", "--missing", "--only", key(known), key(unknown)])
        assert tried == [unknown]

    @pytest.mark.parametrize(
        ("arguments", "says"),
        [
            (
                ["benchmark"],
                "unknown page 'benchmark': known pages are benchmarks, flow-control, prefix-caches",
            ),
            (["--trace", "none.jsonl"], "none.jsonl: no such file"),
            (["--only", "saas"], "--only works with the page prefix-caches only"),
            (["--missing"], "--missing works with the page prefix-caches only"),
        ],
    )
    def test_reports_errors_in_one_line(
        self, arguments: list[str], says: str, tried: list[Task], capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert command.main(arguments) == 2
        assert capsys.readouterr().err == f"extproc.lab.tables: {says}\n"
        assert not tried
