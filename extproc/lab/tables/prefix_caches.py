"""The page docs/prefix-caches.md: strategies for prefix caches compared.

docs/prefix-caches.json keeps the results, and the page is made from that file. A run of some trials
replaces their results only, and trials of a trace keep theirs if the trace is missing.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from string import Template

from extproc.lab.tables import prefix_tables as tables
from extproc.lab.tables import ttft_chart
from extproc.lab.tables.book import Book
from extproc.lab.tables.contenders import CHARACTERS
from extproc.lab.tables.prefix_misses import misses
from extproc.lab.tables.prefix_trials import (
    SHARED,
    oracle_trials,
    prefix_trials,
    shared_trials,
    trials,
)
from extproc.lab.tables.prefix_verdict import judged, summary, verdicts
from extproc.lab.tables.scenes import (
    CHAT,
    CODEGEN,
    LORA,
    MOONCAKE,
    SAAS,
    SCENES,
    SHARED_PREFIXES,
    THREADS,
    WORKLOADS,
)
from extproc.lab.tables.trials import Figures, Task, Trial, key, try_all

PAGE = "prefix-caches.md"
FIGURES = "prefix-caches.json"
IMAGES = "images"

_TEXT = Path(__file__).with_suffix(".md")

TASKS: tuple[Task, ...] = (
    *SCENES,
    *dict.fromkeys(one for trial in trials(WORKLOADS) for one in trial.repeated),
    *(trial for scene in SCENES for trial in oracle_trials(scene)),
)
"""All results that the page shows."""


def update(
    docs: Path,
    trace: Path | None = None,
    only: Sequence[str] | None = None,
    *,
    missing: bool = False,
) -> None:
    """Simulate all tasks, or those with one of the strings `only` in their keys; write the page.

    With `missing`, tasks whose figures are known keep them. Without a trace, tasks that need it
    are left out.
    """
    book = Book.read(docs / FIGURES)
    book.keep(TASKS)

    def note(task: Task, figures: Figures) -> None:
        book.note(task, figures)
        book.write(docs / FIGURES)

    wanted = [one for one in _wanted(trace, only) if not (missing and book.of(one))]
    if wanted:
        try_all(wanted, trace, note)
    book.write(docs / FIGURES)
    (docs / PAGE).write_text(text(book))
    ttft_chart.draw(book, docs / IMAGES)


def text(book: Book) -> str:
    """Return the page."""
    return Template(_TEXT.read_text()).substitute(
        workloads=len(judged(book, SCENES)),
        characters=f"{CHARACTERS:,}",
        summary=summary(book, SCENES),
        verdicts=verdicts(book, SCENES),
        misses=misses(book, SCENES),
        chat=tables.compared(book, CHAT),
        threads=tables.compared(book, THREADS),
        mooncake=tables.compared(book, MOONCAKE),
        saas=tables.compared(book, SAAS),
        codegen=tables.compared(book, CODEGEN),
        lora=tables.compared(book, LORA),
        shared=tables.compared(book, SHARED_PREFIXES, prefix_trials),
        several=tables.several(book),
        rules_of_several=tables.compared(book, SHARED, shared_trials),
        cut=tables.cut(book),
        weights=tables.weights(book),
        adversaries=tables.adversaries(book),
        missing=_missing(book),
    )


def _wanted(trace: Path | None, only: Sequence[str] | None) -> list[Task]:
    possible = [task for task in TASKS if trace or not SCENES[_scene(task)].is_recorded]
    if only is None:
        return possible
    return [task for task in possible if any(word in key(task) for word in only)]


def _scene(task: Task) -> str:
    return task.scene if isinstance(task, Trial) else task


def _missing(book: Book) -> str:
    """Return a note on the scenes with missing results, whose rows are left out."""
    left_out = dict.fromkeys(_scene(task) for task in TASKS if book.of(task) is None)
    if not left_out:
        return ""
    names = ", ".join(name for name in SCENES if name in left_out)
    return (
        f"\n**Some rows are missing.** Not all trials of these were simulated: {names}. To "
        f"simulate all, run `make tables TRACE=FILE` with Mooncake's conversation trace.\n"
    )
