"""The rate at which requests end on an engine."""

from __future__ import annotations

import pytest

from extproc.core.fleet.end_rate import EndRate
from extproc.core.fleet.report import Load, Report


def report(finished: float | None) -> Report:
    return Report(Load(0, 0), 0, finished=finished)


def test_is_unknown_after_one_reading() -> None:
    assert EndRate(report(100), 0.0).per_second == 0


def test_is_the_increase_over_time() -> None:
    ends = EndRate(report(100), 0.0)
    ends.read(report(108), 2.0)
    assert ends.per_second == 4


def test_follows_the_last_half_minute() -> None:
    ends = EndRate(report(0), 0.0)
    ends.read(report(1000), 10.0)
    for seconds in range(11, 200):
        ends.read(report(1000 + 2 * (seconds - 10)), float(seconds))
    assert ends.per_second == pytest.approx(2, rel=0.2)


def test_does_not_include_time_that_does_not_count() -> None:
    ends = EndRate(report(100), 0.0)
    ends.read(report(108), 2.0)
    ends.read(report(108), 9.0, counts=False)
    ends.read(report(112), 10.0)
    assert ends.per_second == pytest.approx(4, rel=0.01)


def test_survives_a_counter_that_is_missing_or_begins_again() -> None:
    ends = EndRate(report(100), 0.0)
    for finished, now in ((None, 1.0), (100, 2.0), (3, 3.0)):
        ends.read(report(finished), now)
    assert ends.per_second == 0
