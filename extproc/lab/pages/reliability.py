"""docs/reliability.md: what was done to a running stack, and what was lost.

What the tests of faults came to is kept in docs/reliability.json, and the page is made of that
alone. So some faults can be tried anew, and those that take hours stay as they were.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import Literal

from pydantic import TypeAdapter

from extproc.lab.tables.markdown import table

PAGE = "reliability.md"
OUTCOMES = "reliability.json"
"""Beside the page: the outcomes that it shows."""

Verdict = Literal["held", "known weakness", "not held"]

_TEXT = Path(__file__).with_suffix(".md")


@dataclass(frozen=True)
class Outcome:
    """One fault, tried once."""

    fault: str
    promise: str
    """What is to hold all the same."""
    tried: str
    lost: str
    verdict: Verdict
    seconds: float
    """That it took to try."""

    def line(self) -> str:
        """For a terminal."""
        return f"{self.fault}: {self.verdict}; tried {self.tried}; lost {self.lost}"


class Scoreboard:
    """Outcomes by fault, in the order in which faults were first tried."""

    def __init__(self, outcomes: Iterable[Outcome] = ()) -> None:
        self._outcomes = {outcome.fault: outcome for outcome in outcomes}

    @classmethod
    def read(cls, path: Path) -> Scoreboard:
        """What stands there; nothing where there is no file yet."""
        return cls(_ADAPTER.validate_json(path.read_bytes()) if path.exists() else ())

    def write(self, path: Path) -> None:
        """As JSON."""
        path.write_bytes(_ADAPTER.dump_json(list(self._outcomes.values()), indent=1) + b"\n")

    def note(self, outcome: Outcome) -> None:
        """In the place of what was known of that fault."""
        self._outcomes[outcome.fault] = outcome

    def text(self) -> str:
        """The page."""
        outcomes = list(self._outcomes.values())
        verdicts = [outcome.verdict for outcome in outcomes]
        return Template(_TEXT.read_text()).substitute(
            faults=len(outcomes),
            held=verdicts.count("held"),
            known=verdicts.count("known weakness"),
            broken=verdicts.count("not held"),
            table=_table(outcomes),
        )


_ADAPTER = TypeAdapter(list[Outcome])


def update(docs: Path, outcomes: Iterable[Outcome]) -> None:
    """Notes outcomes of a run, and writes the page."""
    board = Scoreboard.read(docs / OUTCOMES)
    for outcome in outcomes:
        board.note(outcome)
    board.write(docs / OUTCOMES)
    (docs / PAGE).write_text(board.text())


def _table(outcomes: Iterable[Outcome]) -> str:
    headings = ["fault", "what is to hold", "tried", "lost", "verdict", "seconds"]
    rows = [
        [
            f"`{outcome.fault}`",
            *map(_cell, (outcome.promise, outcome.tried, outcome.lost)),
            outcome.verdict if outcome.verdict == "held" else f"**{outcome.verdict}**",
            f"{outcome.seconds:.0f}",
        ]
        for outcome in outcomes
    ]
    return table(headings, rows, left=5)


def _cell(text: str) -> str:
    """Text that ends no column."""
    return " ".join(text.replace("|", "\\|").split())


if __name__ == "__main__":
    update(Path("docs"), ())
