"""What a test of a fault tried and what was lost: noted by the test, shown when all are over.

Notes travel with pytest's own reports, so that they arrive from whichever process ran the test.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterable
from pathlib import Path

import pytest

from extproc.lab.pages.reliability import Outcome, Verdict, update

DIRECTORY = "tests/faults/"
DOCS = os.environ.get("EXTPROC_RELIABILITY")
"""The directory whose page is to be written; none, unless `make faults` asks for it."""

_PROMISE, _TRIED, _LOST = "promise", "tried", "lost"


class Report:
    """Of one fault; the last word on each point counts."""

    def __init__(self, item: pytest.Function) -> None:
        self._notes = item.user_properties
        self._note(_PROMISE, (inspect.getdoc(item.function) or "").split("\n\n")[0])

    def tried(self, what: str) -> None:
        """What is done to the stack; to be said before it is done."""
        self._note(_TRIED, what)

    def lost(self, what: str = "", **counts: float) -> None:
        """What it cost, in words and numbers; to be said before it is judged."""
        shown = [f"{count:g} {name.replace('_', ' ')}" for name, count in counts.items()]
        self._note(_LOST, ", ".join([*shown, *([what] if what else [])]))

    def _note(self, name: str, text: str) -> None:
        self._notes.append((name, text))


def outcomes(reports: Iterable[pytest.TestReport]) -> list[Outcome]:
    """Of the faults among these tests, in the order in which they stand in their files."""
    called = [one for one in reports if one.nodeid.startswith(DIRECTORY)]
    return [_outcome(one) for one in sorted(called, key=lambda one: one.location[:2])]


def show(reporter: pytest.TerminalReporter) -> None:
    """A line for each fault, and the page where it is asked for."""
    told = ("passed", "failed", "xfailed")
    found = outcomes(
        report
        for kind in told
        for report in reporter.stats.get(kind, [])
        if isinstance(report, pytest.TestReport) and dict(report.user_properties).get(_PROMISE)
    )
    if found:
        reporter.section("faults")
        for outcome in found:
            reporter.write_line(outcome.line())
    if DOCS and found:
        update(Path(DOCS), found)


def _outcome(report: pytest.TestReport) -> Outcome:
    notes = {name: str(value) for name, value in report.user_properties}
    name = report.nodeid.rpartition("::")[2].removeprefix("test_")
    return Outcome(
        fault=name,
        promise=notes[_PROMISE],
        tried=notes.get(_TRIED, "nothing"),
        lost=notes.get(_LOST, "unknown: it broke off"),
        verdict=_verdict(report),
        seconds=round(report.duration, 1),
    )


def _verdict(report: pytest.TestReport) -> Verdict:
    if report.passed:
        return "held"
    return "known weakness" if hasattr(report, "wasxfail") else "not held"
