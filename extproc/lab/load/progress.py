"""Progress bars of a run on a terminal; without a terminal there is no output."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)

from extproc.lab.load import messages


class Display:
    """A bar for each phase of a run: the warm-up, if there is one, and the measurement."""

    def __init__(self, workload: str, phases: Sequence[int]) -> None:
        self._names = [*["warm-up"] * (len(phases) - 1), workload]
        self._phases = phases
        self._task: TaskID | None = None
        console = Console(stderr=True)
        self._bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[state]}"),
            console=console,
            disable=not console.is_terminal,
        )

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bars.stop()

    def begins(self, phase: int) -> None:
        """Add the bar of a phase that begins."""
        name, total = self._names[phase], self._phases[phase]
        self._task = self._bars.add_task(name, total=total, state="")

    def update(self, total: messages.Progress) -> None:
        """Show the counts of all processes together."""
        if self._task is not None:
            failed = f", {total.failed:,} failed" if total.failed else ""
            state = f"{total.in_flight:,} in flight, {total.tokens:,} tokens{failed}"
            done = total.succeeded + total.failed
            self._bars.update(self._task, completed=done, state=state)
