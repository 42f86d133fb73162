"""Simulated time: everything at its moment, and at one moment in the order of asking."""

from __future__ import annotations

from functools import partial

from hypothesis import given, settings
from hypothesis import strategies as st

from extproc.lab.simulation.timeline import Timeline


def never() -> bool:
    return False


def test_time_begins_at_zero_and_stands_still_while_nothing_happens() -> None:
    timeline = Timeline()
    timeline.run(never)
    assert timeline.now == timeline.clock() == 0.0


@settings(deadline=None)
@given(st.lists(st.sampled_from([0.0, 0.5, 1.0, 2.0])))
def test_what_happens_is_in_order_of_time_and_then_of_asking(times: list[float]) -> None:
    timeline = Timeline()
    done: list[tuple[float, int]] = []
    for number, time in enumerate(times):
        timeline.at(time, partial(lambda n: done.append((timeline.now, n)), number))
    timeline.run(never)
    assert done == sorted((time, number) for number, time in enumerate(times))


def test_what_is_asked_for_the_past_comes_at_once_but_after_what_is_due_now() -> None:
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


def test_an_action_may_ask_for_more_without_end_until_it_is_over() -> None:
    timeline = Timeline()

    def again() -> None:
        timeline.at(timeline.now + 1, again)

    again()
    timeline.run(lambda: timeline.now >= 3)
    assert timeline.now == 3.0


def test_a_run_goes_on_where_the_one_before_ended() -> None:
    timeline = Timeline()
    done: list[float] = []
    for time in (1.0, 2.0, 3.0):
        timeline.at(time, lambda: done.append(timeline.now))
    timeline.run(lambda: len(done) == 2)
    assert done == [1.0, 2.0]
    timeline.run(never)
    assert done == [1.0, 2.0, 3.0]


def test_its_clock_is_that_of_the_actions() -> None:
    timeline = Timeline()
    seen: list[float] = []
    timeline.at(1.25, lambda: seen.append(timeline.clock()))
    timeline.run(never)
    assert seen == [1.25]
