"""Simulated time: every action at its moment, and actions of one moment in their order."""

from __future__ import annotations

from functools import partial

from hypothesis import given, settings
from hypothesis import strategies as st

from extproc.lab.simulation.timeline import Timeline


def never() -> bool:
    return False


def test_time_starts_at_zero_and_stops_without_actions() -> None:
    timeline = Timeline()
    timeline.run(never)
    assert timeline.now == timeline.clock() == 0.0


@settings(deadline=None)
@given(st.lists(st.sampled_from([0.0, 0.5, 1.0, 2.0])))
def test_actions_run_by_time_and_then_in_order_of_scheduling(times: list[float]) -> None:
    timeline = Timeline()
    done: list[tuple[float, int]] = []
    for number, time in enumerate(times):
        timeline.at(time, partial(lambda n: done.append((timeline.now, n)), number))
    timeline.run(never)
    assert done == sorted((time, number) for number, time in enumerate(times))


def test_past_actions_run_now_after_those_already_due() -> None:
    timeline = Timeline()
    done: list[tuple[str, float]] = []

    def note(name: str) -> None:
        done.append((name, timeline.now))

    def first() -> None:
        note("first")
        timeline.at(1.0, lambda: note("late"))

    timeline.at(5.0, first)
    timeline.at(5.0, lambda: note("second"))
    timeline.run(never)
    assert done == [("first", 5.0), ("second", 5.0), ("late", 5.0)]


def test_actions_can_schedule_more_until_the_run_is_over() -> None:
    timeline = Timeline()

    def again() -> None:
        timeline.at(timeline.now + 1, again)

    again()
    timeline.run(lambda: timeline.now >= 3)
    assert timeline.now == 3.0


def test_a_run_continues_at_the_end_of_the_previous_one() -> None:
    timeline = Timeline()
    done: list[float] = []
    for time in (1.0, 2.0, 3.0):
        timeline.at(time, lambda: done.append(timeline.now))
    timeline.run(lambda: len(done) == 2)
    assert done == [1.0, 2.0]
    timeline.run(never)
    assert done == [1.0, 2.0, 3.0]


def test_its_clock_returns_the_time_of_the_action() -> None:
    timeline = Timeline()
    seen: list[float] = []
    timeline.at(1.25, lambda: seen.append(timeline.clock()))
    timeline.run(never)
    assert seen == [1.25]
