"""The page of fault-injection results, docs/reliability.md.

docs/reliability.json keeps the result of each fault test, and the page is made from it. A run of
some tests replaces their results only, so the tests that take hours need not run each time.
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
"""The outcomes that the page shows."""

Verdict = Literal["held", "known weakness", "not held"]

_TEXT = Path(__file__).with_suffix(".md")


@dataclass(frozen=True)
class Outcome:
    """The result of one fault test."""

    fault: str
    promise: str
    """The behavior that must hold in spite of the fault."""
    tried: str
    lost: str
    verdict: Verdict
    seconds: float
    """Duration of the test."""

    def line(self) -> str:
        """Return a line for a terminal."""
        return f"{self.fault}: {self.verdict}; tried {self.tried}; lost {self.lost}"


class Scoreboard:
    """Outcomes by fault, in the order in which the faults were first tested."""

    def __init__(self, outcomes: Iterable[Outcome] = ()) -> None:
        self._outcomes = {outcome.fault: outcome for outcome in outcomes}

    @classmethod
    def read(cls, path: Path) -> Scoreboard:
        """Read a file; without a file, return an empty scoreboard."""
        return cls(_ADAPTER.validate_json(path.read_bytes()) if path.exists() else ())

    def write(self, path: Path) -> None:
        """Write the outcomes as JSON."""
        path.write_bytes(_ADAPTER.dump_json(list(self._outcomes.values()), indent=1) + b"\n")

    def note(self, outcome: Outcome) -> None:
        """Replace the outcome of that fault."""
        self._outcomes[outcome.fault] = outcome

    def text(self) -> str:
        """Return the page."""
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
    """Add the outcomes of a run, and write the page."""
    board = Scoreboard.read(docs / OUTCOMES)
    for outcome in outcomes:
        board.note(outcome)
    board.write(docs / OUTCOMES)
    (docs / PAGE).write_text(board.text())


def _table(outcomes: Iterable[Outcome]) -> str:
    headings = ["fault", "promise", "fault injected", "lost", "verdict", "seconds"]
    rows = []
    for _, group in _by_test(outcomes):
        above = ("", "")
        for outcome in group:
            texts = (outcome.promise, outcome.tried)
            shown = ["" if text == over else text for text, over in zip(texts, above, strict=True)]
            above = texts
            rows.append(
                [
                    f"`{outcome.fault}`",
                    *map(_cell, (*shown, outcome.lost)),
                    outcome.verdict if outcome.verdict == "held" else f"**{outcome.verdict}**",
                    f"{outcome.seconds:.0f}",
                ]
            )
    return table(headings, rows, left=5)


def _by_test(outcomes: Iterable[Outcome]) -> Iterable[tuple[str, list[Outcome]]]:
    """Group the outcomes by their test, without its parameters."""
    groups: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        groups.setdefault(outcome.fault.partition("[")[0], []).append(outcome)
    return groups.items()


def _cell(text: str) -> str:
    """Return the text on one line, with its pipes escaped."""
    return " ".join(text.replace("|", "\\|").split())


if __name__ == "__main__":
    update(Path("docs"), ())
