"""The beginning of the last step that metrics show."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.core.fleet.last_steps import LastSteps
from extproc.core.fleet.report import Load, Report, StepTotals

A, B = "10.0.0.1:8000", "10.0.0.2:8000"
WITHOUT_COUNTERS = Report(Load(0, 0), 0)


def report(steps: int, running: int = 3) -> Report:
    return Report(Load(0, 0), running, steps=StepTotals(steps, 0, 0, 0))


@pytest.fixture
def last() -> LastSteps:
    found = LastSteps()
    assert found.read(A, report(100), now=10.0) is None
    return found


def test_is_unknown_without_a_counter(last: LastSteps) -> None:
    assert last.read(A, WITHOUT_COUNTERS, now=11.0) is None


def test_is_one_and_a_half_usual_steps_ago(last: LastSteps) -> None:
    assert last.read(A, report(104), now=11.0) == pytest.approx(11 - 1.5 / 4)


def test_is_the_end_of_the_step_before_if_only_one_has_ended(last: LastSteps) -> None:
    last.read(A, report(104), now=11.0)
    assert last.read(A, report(105), now=11.5) == pytest.approx(11 - 0.5 / 4)


def test_stays_until_the_next_step_ends(last: LastSteps) -> None:
    began = last.read(A, report(104), now=11.0)
    for now in (11.2, 11.4, 11.6):
        assert last.read(A, report(104), now) == began


def test_is_unknown_until_two_steps_have_ended(last: LastSteps) -> None:
    assert last.read(A, report(100), now=11.0) is None
    assert last.read(A, report(101), now=12.0) is None
    assert last.read(A, report(102), now=13.0) == pytest.approx(11.5)


def test_is_not_before_a_reading_of_an_idle_engine(last: LastSteps) -> None:
    last.read(A, report(104, running=0), now=11.0)
    last.read(A, report(104, running=0), now=70.0)
    assert last.read(A, report(105), now=71.0) == 70.0


def test_is_unknown_again_after_a_restart(last: LastSteps) -> None:
    last.forget(A)
    assert last.read(A, report(3), now=11.0) is None


def test_is_known_for_each_endpoint(last: LastSteps) -> None:
    assert last.read(B, report(9), now=11.0) is None
    assert last.read(A, report(102), now=11.0) == pytest.approx(11 - 1.5 / 2)


@given(st.lists(st.tuples(st.floats(0.001, 10), st.integers(0, 50)), min_size=1))
def test_is_never_later_than_the_reading_and_never_goes_back(
    intervals: list[tuple[float, int]],
) -> None:
    found, now, steps = LastSteps(), 0.0, 0
    latest = found.read(A, report(0), now)
    for seconds, more in intervals:
        now, steps = now + seconds, steps + more
        began = found.read(A, report(steps, running=more), now)
        if latest is not None:
            assert began is not None
            assert latest <= began <= now
        latest = began
