"""The results of the fault tests: each test notes its own, and the end of the run shows them all.

Notes travel in pytest's own reports, so they also arrive from worker processes.
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
"""The directory of the page to update. Only `make faults` and `make soak` set it."""

_PROMISE, _TRIED, _LOST = "promise", "tried", "lost"


class Report:
    """The notes on one fault. A later note replaces an earlier one of the same kind."""

    def __init__(self, item: pytest.Function) -> None:
        self._notes = item.user_properties
        self._note(_PROMISE, (inspect.getdoc(item.function) or "").split("\n\n")[0])

    def tried(self, what: str) -> None:
        """Note the fault that the test injects. Call it before injecting the fault."""
        self._note(_TRIED, what)

    def lost(self, what: str = "", **counts: float) -> None:
        """Note what the fault cost, in words and numbers. Call it before the assertions."""
        shown = [f"{count:g} {name.replace('_', ' ')}" for name, count in counts.items()]
        self._note(_LOST, ", ".join([*shown, *([what] if what else [])]))

    def _note(self, name: str, text: str) -> None:
        self._notes.append((name, text))


def outcomes(reports: Iterable[pytest.TestReport]) -> list[Outcome]:
    """Return the outcomes of the fault tests among these reports, in the order of the files."""
    ours = [report for report in reports if report.nodeid.startswith(DIRECTORY)]
    return [_outcome(report) for report in sorted(ours, key=lambda report: report.location[:2])]


def show(reporter: pytest.TerminalReporter) -> None:
    """Print a line for each fault, and update the page if `DOCS` is set."""
    results = ("passed", "failed", "xfailed")
    found = outcomes(
        report
        for result in results
        for report in reporter.stats.get(result, [])
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
        lost=notes.get(_LOST, "unknown: the test broke off"),
        verdict=_verdict(report),
        seconds=round(report.duration, 1),
    )


def _verdict(report: pytest.TestReport) -> Verdict:
    if report.passed:
        return "held"
    return "known weakness" if hasattr(report, "wasxfail") else "not held"
