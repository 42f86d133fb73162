from __future__ import annotations

from math import inf

import pytest

from extproc.core.fleet.engine_times import EngineTimes
from extproc.core.fleet.report import Load, PrefillTotals, Report, StepTotals
from extproc.core.fleet.speeds import FIRST_PERIODS, LEAST_PERIODS, MOST_RATIO, Speeds
from tests.core.clock import Clock

A, B, C = "10.0.0.1:8000", "10.0.0.2:8000", "10.0.0.3:8000"
ALL = (A, B, C)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def speeds(clock: Clock) -> Speeds:
    return Speeds(clock)


def compute(
    speeds: Speeds,
    clock: Clock,
    seconds: float,
    address: str = A,
    *,
    tokens: float = 5_000,
    prompts: int = 100,
) -> None:
    """Let an endpoint compute equal prompts, one after the other, each shown by a scrape."""
    speeds.began(address)
    for left in reversed(range(prompts)):
        clock.advance(seconds)
        speeds.computed(address, tokens)
        speeds.observed(address, is_busy=left > 0)


def compute_on_all(
    speeds: Speeds, clock: Clock, *seconds: float, tokens: float = 5_000, prompts: int = 100
) -> None:
    """Let each endpoint compute equal prompts, in these seconds each."""
    for address, each in zip(ALL, seconds, strict=True):
        compute(speeds, clock, each, address, tokens=tokens, prompts=prompts)


class TestSlowness:
    def test_is_the_time_over_that_of_the_median_endpoint(
        self, speeds: Speeds, clock: Clock
    ) -> None:
        compute_on_all(speeds, clock, 0.5, 1, 2)
        assert speeds.slowness(ALL) == pytest.approx({A: 0.5, C: 2}, rel=0.05)

    def test_is_unknown_while_all_are_about_equally_fast(
        self, speeds: Speeds, clock: Clock
    ) -> None:
        compute_on_all(speeds, clock, 0.9, 1, 1.2)
        assert speeds.slowness(ALL) == {}

    def test_is_unknown_after_few_prompts(self, speeds: Speeds, clock: Clock) -> None:
        compute_on_all(speeds, clock, 0.5, 1, 2, prompts=int(LEAST_PERIODS) - 1)
        assert speeds.slowness(ALL) == {}

    def test_is_unknown_for_a_single_endpoint(self, speeds: Speeds, clock: Clock) -> None:
        compute(speeds, clock, 0.5)
        assert speeds.slowness(ALL) == {}

    def test_ignores_short_prompts(self, speeds: Speeds, clock: Clock) -> None:
        compute_on_all(speeds, clock, 0.5, 1, 2, tokens=250)
        assert speeds.slowness(ALL) == {}

    def test_has_limits(self, speeds: Speeds, clock: Clock) -> None:
        compute_on_all(speeds, clock, 0.01, 1, 100)
        assert speeds.slowness(ALL) == {A: 1 / MOST_RATIO, C: MOST_RATIO}

    def test_changes_when_an_endpoint_slows_down(self, speeds: Speeds, clock: Clock) -> None:
        compute_on_all(speeds, clock, 1, 1, 1)
        compute(speeds, clock, 3, B, prompts=200)
        assert set(speeds.slowness(ALL)) == {B}

    def test_is_forgotten_with_its_endpoint(self, speeds: Speeds, clock: Clock) -> None:
        compute_on_all(speeds, clock, 0.5, 1, 2)
        speeds.forget(C)
        assert C not in speeds.slowness(ALL)


class TestSeconds:
    def test_are_known_after_a_few_prompts(self, speeds: Speeds, clock: Clock) -> None:
        compute(speeds, clock, 1, prompts=int(FIRST_PERIODS) - 1)
        assert speeds.seconds(A, 1, 5_000) == inf
        compute(speeds, clock, 1, prompts=10)
        assert speeds.seconds(A, 1, 5_000) == pytest.approx(1, rel=0.2)

    def test_of_a_new_endpoint_are_those_of_all_together(
        self, speeds: Speeds, clock: Clock
    ) -> None:
        compute(speeds, clock, 1, A, prompts=10)
        compute(speeds, clock, 3, B, prompts=10)
        assert speeds.seconds(C, 1, 5_000) == pytest.approx(2, rel=0.15)
        compute(speeds, clock, 9, C)
        assert speeds.seconds(C, 1, 5_000) == pytest.approx(9, rel=0.2)

    def test_of_a_new_endpoint_are_unknown_if_engines_count_theirs(self, clock: Clock) -> None:
        times = EngineTimes()
        speeds = Speeds(clock, times)
        compute(speeds, clock, 1, A)
        assert speeds.seconds(C, 1, 5_000) < inf
        times.read(A, Report(Load(0, 0.0), 0, steps=StepTotals(0, 0, 0, 0)), None, clock())
        assert speeds.seconds(C, 1, 5_000) == inf

    def test_follow_from_steps_until_a_prompt_shows_the_speed(self, clock: Clock) -> None:
        times = EngineTimes()
        speeds = Speeds(clock, times)
        for second in range(3):
            totals = StepTotals(0, 0, second * 0.1, second * 10)
            times.read(A, Report(Load(0, 0.0), 0, steps=totals), None, clock())
        assert speeds.seconds(A, 2, 1_000) == pytest.approx((2 + 5) * 0.01)
        assert speeds.tokens(A, 3 * (1 + 5) * 0.01) == pytest.approx(3_000)
        compute(speeds, clock, 1)
        assert speeds.seconds(A, 1, 5_000) == pytest.approx(1, rel=0.2)

    def test_are_those_that_the_engine_counts(self, clock: Clock) -> None:
        times = EngineTimes()
        speeds = Speeds(clock, times)
        compute(speeds, clock, 1, prompts=100)
        for served in range(3):
            totals = StepTotals(0, 0, served * 0.1, served * 10)
            prefills = PrefillTotals(served, served * 0.51, served * 5_000)
            report = Report(Load(0, 0.0), 0, steps=totals, prefills=prefills)
            times.read(A, report, None, clock())
        assert speeds.seconds(A, 2, 1_000) == pytest.approx(2 * 0.01 + 1_000 * 0.0001)


class TestBusyPeriod:
    """Each test compares with an endpoint that computes 5,500 tokens a second."""

    @pytest.fixture
    def speeds(self, clock: Clock) -> Speeds:
        speeds = Speeds(clock)
        for address in (B, C):
            compute(speeds, clock, 1, address)
        return speeds

    def test_does_not_include_idle_time(self, speeds: Speeds, clock: Clock) -> None:
        for _ in range(100):
            compute(speeds, clock, 1, prompts=2)
            clock.advance(60)
            speeds.observed(A, is_busy=False)
        assert speeds.slowness(ALL) == {}

    def test_includes_the_time_of_a_long_prompt(self, speeds: Speeds, clock: Clock) -> None:
        for _ in range(30):
            speeds.began(A)
            for _ in range(9):
                clock.advance(1)
                speeds.observed(A, is_busy=True)
            compute(speeds, clock, 1, prompts=1)
        assert speeds.slowness(ALL) == {A: MOST_RATIO}

    def test_ends_half_an_interval_before_the_scrape_on_average(
        self, speeds: Speeds, clock: Clock
    ) -> None:
        for _ in range(30):
            compute(speeds, clock, 2, prompts=1)
        assert speeds.slowness(ALL) == {}

    def test_counts_the_tokens_of_the_engine_if_known(self, speeds: Speeds, clock: Clock) -> None:
        total = 0.0
        speeds.began(A)
        for _ in range(50):
            speeds.observed(A, is_busy=True, total=total)
            clock.advance(1)
            total += 11_000  # more than expected: a cache had been evicted
            speeds.computed(A, 5_000)
        assert speeds.slowness(ALL) == pytest.approx({A: 0.5}, rel=0.05)

    def test_is_void_if_all_its_requests_were_cancelled(self, speeds: Speeds, clock: Clock) -> None:
        for _ in range(100):
            speeds.began(A)
            clock.advance(60)
            speeds.observed(A, is_busy=False)
        assert speeds.slowness(ALL) == {}
