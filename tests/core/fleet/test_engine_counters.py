from __future__ import annotations

from math import inf

import pytest

from extproc.core.fleet.engine_counters import FEW_MEANS, LEAST_TOKENS, Times
from extproc.core.fleet.engine_times import EngineTimes
from extproc.core.fleet.report import Load, PrefillTotals, Report
from tests.core.fleet.counting_engines import A, Fleet


@pytest.fixture
def fleet() -> Fleet:
    return Fleet()


class TestStep:
    def test_is_the_shortest_mean_time_between_tokens(self, fleet: Fleet) -> None:
        for seconds in (0.03, 0.01, 0.02):
            fleet.decode(A, seconds)
        assert fleet.times.own(A).step == pytest.approx(0.01)

    def test_is_unknown_while_the_counters_say_that_it_takes_no_time(self, fleet: Fleet) -> None:
        for _ in range(3):
            fleet.decode(A, 0.0)
        assert fleet.times.own(A).step == inf

    def test_is_unknown_after_one_mean(self, fleet: Fleet) -> None:
        fleet.engine(A)
        assert fleet.times.own(A).step == inf
        fleet.decode(A, 0.01)
        assert fleet.times.own(A).step == pytest.approx(0.01)

    def test_is_the_mean_of_several_times_over_more_than_one_reading(self, fleet: Fleet) -> None:
        for seconds in (0.001, 0.019) * 4:
            fleet.decode(A, seconds, times=1)
        assert fleet.times.own(A).step == pytest.approx(0.01)

    def test_is_learned_again_after_the_counters_went_back(self, fleet: Fleet) -> None:
        fleet.decode(A, 0.02, times=10_000)
        fleet.engine(A).restart()
        fleet.read(A)
        fleet.decode(A, 0.01)
        assert fleet.times.own(A).step == pytest.approx(0.01)

    def test_is_forgotten_if_the_engine_has_become_slower(self, fleet: Fleet) -> None:
        fleet.decode(A, 0.01)
        for _ in range(2):
            fleet.now += 600
            fleet.decode(A, 0.02)
        assert fleet.times.own(A).step == pytest.approx(0.02)

    def test_counts_as_250_prompt_tokens_at_most_at_first(self, fleet: Fleet) -> None:
        fleet.start(A)
        for seconds, tokens in ((0.1, 1_000), (0.9, 1_000)):
            fleet.respond(A, seconds, tokens)
            assert fleet.times.own(A).step == pytest.approx(0.025)
        for _ in range(FEW_MEANS):
            fleet.decode(A, 0.1)
            assert fleet.times.own(A).step == pytest.approx(0.025)
        fleet.decode(A, 0.1)
        assert fleet.times.own(A).step == pytest.approx(0.1)

    def test_does_not_include_those_before_the_first_reading(self, fleet: Fleet) -> None:
        fleet.decode(A, 0.02)
        fleet.times.forget(A)
        for _ in range(3):
            fleet.decode(A, 0.03)
        assert fleet.times.own(A).step == pytest.approx(0.03)


class TestToken:
    def test_is_the_time_of_a_prompt_without_its_step(self, fleet: Fleet) -> None:
        fleet.decode(A, 0.01)
        fleet.finish(A, 0.11, tokens=1_000)
        assert fleet.times.own(A).token == pytest.approx(0.0001)

    def test_is_that_of_the_least_disturbed_prompt(self, fleet: Fleet) -> None:
        fleet.decode(A, 0.01)
        for seconds in (0.5, 0.11, 0.9):
            fleet.finish(A, seconds, tokens=1_000)
        assert fleet.times.own(A).token == pytest.approx(0.0001)

    def test_follows_a_step_that_is_known_better_later(self, fleet: Fleet) -> None:
        fleet.decode(A, 0.1)
        fleet.finish(A, 0.11, tokens=1_000)
        fleet.decode(A, 0.01)
        assert fleet.times.own(A).token == pytest.approx(0.0001)

    def test_is_known_from_the_first_token_before_the_request_finishes(self, fleet: Fleet) -> None:
        fleet.decode(A, 0.01)
        fleet.respond(A, 0.11, tokens=1_000)
        assert fleet.times.own(A).token == pytest.approx(0.0001)
        fleet.finish(A, 0.06, tokens=1_000)  # it waited in the queue
        assert fleet.times.own(A).token == pytest.approx(0.00005)

    @pytest.mark.parametrize("event", ["partly computed", "preempted"])
    def test_includes_all_time_between_readings_if_other_tokens_were_computed(
        self, fleet: Fleet, event: str
    ) -> None:
        """Otherwise the time of a short prompt would be that of all these tokens."""
        engine = fleet.engine(A)
        fleet.decode(A, 0.01)
        if event == "preempted":
            engine.preempt(8_000)
        else:
            engine.compute(8_000)
        fleet.now += 0.8
        fleet.respond(A, 0.11, tokens=1_000)
        assert fleet.times.own(A).token == pytest.approx(0.99 / 9_000)

    def test_is_unknown_if_the_steps_are_not_counted(self) -> None:
        """The prompts of several engines behind one port overlap."""
        times = EngineTimes()
        for prompts in range(3):
            prefills = PrefillTotals(prompts, prompts * 1.0, prompts * 1_000)
            times.read(A, Report(Load(0, 0.0), 0, prefills=prefills), None, now=prompts)
        assert times.own(A) == Times(inf, inf)

    def test_is_not_that_of_first_tokens_if_steps_count_cached_tokens(self, fleet: Fleet) -> None:
        fleet.decode(A, 0.01)
        fleet.respond(A, 0.02, tokens=1_000, cached=0)  # it is not noticed yet
        fleet.respond(A, 0.02, tokens=1_000, cached=900)
        assert fleet.times.own(A).token == inf
        fleet.respond(A, 0.02, tokens=1_000, cached=-900)
        assert fleet.times.own(A).token == inf

    def test_is_unknown_after_short_prompts(self, fleet: Fleet) -> None:
        fleet.decode(A, 0.01)
        fleet.finish(A, 0.02, tokens=LEAST_TOKENS - 1)
        fleet.finish(A, 0.2, tokens=10 * LEAST_TOKENS - 1, prompts=10)
        assert fleet.times.own(A).token == inf


def test_a_short_prompt_that_takes_hardly_longer_than_a_step_counts_half(fleet: Fleet) -> None:
    fleet.serve(A, (0.01, 0.0), tokens=200)
    assert fleet.times.own(A).token == pytest.approx(0.01 / 200 / 2)
