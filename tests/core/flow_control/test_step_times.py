"""The durations of steps are learned from the times at which responses end."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.core.flow_control.step_times import StepTimes, most_frequent

BASE, PER_TOKEN = 0.07, 0.00025


def test_nothing_is_known_at_first() -> None:
    times = StepTimes()
    for _ in range(7):
        times.learn(BASE, 0.0)
    assert not times.base
    times.learn(BASE, 0.0)
    assert times.base == BASE


def test_a_few_times_of_single_steps_show_a_steps_duration() -> None:
    times = StepTimes()
    for one in range(64):
        times.learn(BASE if one % 8 == 0 else (2 + one % 5) * BASE, 0.0)
    assert times.of(0.0) == BASE


def test_further_steps_without_an_end_do_not_make_prompts_seem_slow() -> None:
    times = StepTimes()
    for one in range(64):
        times.learn(BASE, 0.0)
        steps = 1 + one % 3
        tokens = 200.0 + 37 * (one % 11)
        times.learn(steps * BASE + tokens * PER_TOKEN, tokens)
    assert times.per_token == pytest.approx(PER_TOKEN)


def test_a_time_of_many_steps_says_nothing() -> None:
    times = StepTimes()
    for _ in range(64):
        times.learn(5.0, 500.0)
    assert not times.base


def test_an_engine_that_is_not_known_yet_is_like_the_others() -> None:
    every = StepTimes()
    for _ in range(64):
        StepTimes(every).learn(BASE, 0.0)
    new = StepTimes(every)
    new.learn(1.0, 0.0)
    assert new.base == BASE
    assert not new.is_own


def test_an_engine_that_is_known_differs_from_the_others() -> None:
    every = StepTimes()
    slow = StepTimes(every)
    fast = StepTimes(every)
    for _ in range(64):
        slow.learn(2 * BASE, 0.0)
        fast.learn(BASE, 0.0)
    assert slow.base == 2 * BASE
    assert slow.is_own


def test_the_engines_counters_show_both_durations() -> None:
    rng = Random(1)
    times = StepTimes()
    for _ in range(8):
        steps, tokens = rng.randint(1, 4), rng.choice([0.0, 300.0, 700.0])
        times.read(steps, steps * BASE + tokens * PER_TOKEN, tokens)
    assert times.base == pytest.approx(BASE)
    assert times.per_token == pytest.approx(PER_TOKEN)
    assert times.is_own


def test_steps_with_equal_prompts_do_not_show_what_a_prompt_takes() -> None:
    times = StepTimes()
    for steps in (1, 2, 1, 3):
        times.read(steps, steps * (BASE + 500 * PER_TOKEN), steps * 500.0)
    assert not times.base


def test_the_most_frequent_value_is_among_those_that_are_closest_together() -> None:
    assert most_frequent([9.0, 1.0, 5.0, 5.1, 5.2, 7.0]) == 5.1
    assert most_frequent([3.0]) == 3.0


@given(
    seed=st.integers(0, 10_000),
    base=st.floats(0.02, 0.15),
    ratio=st.floats(1.0, 4.0),
    share=st.floats(0.7, 1.0),
)
def test_durations_are_learned_of_any_engine_though_news_is_late(
    seed: int, base: float, ratio: float, share: float
) -> None:
    """`ratio`: of a step with 500 tokens to one without; `share`: of the steps that end one."""
    rng = Random(seed)
    per_token = (ratio - 1) * base / 500
    times = StepTimes()
    for _ in range(400):
        tokens = rng.choice([0.0, rng.uniform(200, 800)])
        seconds = base + tokens * per_token + rng.uniform(-0.1, 0.1) * base
        while rng.random() > share:
            seconds += base
        times.learn(seconds, tokens)
    assert 0.75 * base < times.of(0.0) < 1.25 * base
    assert 0.7 * ratio * base < times.of(500.0) < 1.3 * ratio * base
