from __future__ import annotations

from itertools import pairwise
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.core.fleet.engine_counters import LEAST_READINGS, Times
from extproc.core.fleet.engine_times import MOST_BUSY, MOST_RATIO, EngineTimes, Slowness
from extproc.core.fleet.report import Load, PrefillTotals, Report, StepTotals
from tests.core.fleet.counting_engines import BLOCKS, FAST, SLOW, A, B, C, D, Fleet


def slowness(fleet: Fleet, *addresses: str, tokens: float = 1_000) -> Slowness:
    found = fleet.times.slowness(addresses, tokens)
    assert found is not None
    return found


@pytest.fixture
def fleet() -> Fleet:
    return Fleet()


class TestKind:
    def test_has_the_shortest_times_of_its_endpoints(self, fleet: Fleet) -> None:
        fleet.serve(A, (0.01, 0.00015))
        fleet.serve(B, (0.012, 0.0001))
        found = fleet.times.of([A, B])
        assert found[A] == found[B]
        assert found[A] == pytest.approx(Times(0.01, 0.0001))

    def test_ends_where_steps_and_prompt_tokens_take_much_longer(self, fleet: Fleet) -> None:
        for address, kind in ((A, FAST), (B, FAST), (C, SLOW)):
            fleet.serve(address, kind)
        found = fleet.times.of([A, B, C])
        assert found[A] == found[B] != found[C]

    def test_does_not_end_where_only_steps_take_much_longer(self, fleet: Fleet) -> None:
        """An endpoint that is always busy has no short step."""
        fleet.serve(A, (0.01, 0.0001))
        fleet.serve(B, (0.03, 0.00012))
        found = fleet.times.of([A, B])
        assert found[A] == found[B] == pytest.approx(Times(0.01, 0.0001))

    def test_ends_where_an_idle_endpoint_has_the_steps_of_a_busy_faster_one(
        self, fleet: Fleet
    ) -> None:
        for address, kind in ((A, (0.008, 0.0001)), (B, (0.01, 0.0001)), (C, (0.012, 0.0003))):
            fleet.serve(address, kind)
        found = fleet.times.of([A, B, C])
        assert found[A] == found[B] == pytest.approx(Times(0.008, 0.0001))
        assert found[C] == pytest.approx(Times(0.012, 0.0003))

    def test_does_not_end_where_only_the_first_prompts_take_longer(self, fleet: Fleet) -> None:
        fleet.serve(A, FAST)
        fleet.serve(B, SLOW, requests=LEAST_READINGS - 1)
        assert set(fleet.times.of([A, B]).values()) == {fleet.times.own(A)}
        fleet.serve(B, FAST, requests=1)
        assert set(fleet.times.of([A, B]).values()) == {fleet.times.own(A)}

    def test_ends_where_several_prompts_take_longer(self, fleet: Fleet) -> None:
        fleet.serve(A, FAST)
        fleet.serve(B, SLOW, requests=LEAST_READINGS)
        assert fleet.times.of([A, B]) == {one: fleet.times.own(one) for one in (A, B)}

    def test_depends_on_steps_alone_while_few_prompts_are_known(self, fleet: Fleet) -> None:
        for address, step in ((A, 0.01), (B, 0.01), (C, 0.03)):
            fleet.decode_long(address, step)
        fleet.serve(B, (0.01, SLOW[1]), requests=LEAST_READINGS - 1)
        found = fleet.times.of([A, B, C])
        assert found[A] == found[B] == Times(fleet.times.own(A).step, inf)
        assert found[C].step == pytest.approx(0.03)

    def test_ends_where_only_steps_are_alike(self, fleet: Fleet) -> None:
        """The steps of a busy fast GPU may take as long as those of an idle slow one."""
        fleet.serve(A, (0.01, 0.0001))
        fleet.serve(B, (0.012, 0.0005))
        found = fleet.times.of([A, B])
        assert found[B].token == pytest.approx(5 * found[A].token)

    def test_includes_equal_endpoints_although_another_kind_is_between_them(
        self, fleet: Fleet
    ) -> None:
        for address, kind in ((A, (0.01, 1e-4)), (B, (0.011, 5e-4)), (C, (0.012, 1.5e-4))):
            fleet.serve(address, kind)
        found = fleet.times.of([A, B, C])
        assert found[A] == found[C] != found[B]

    @pytest.mark.parametrize(("ratio", "kinds"), [(2.4, 1), (2.7, 2)])
    def test_includes_a_busy_endpoint_up_to_a_ratio(
        self, fleet: Fleet, ratio: float, kinds: int
    ) -> None:
        fleet.serve(A, (0.01, 1e-4))
        fleet.serve(B, (0.012, ratio * 1e-4))
        assert len(set(fleet.times.of([A, B]).values())) == kinds

    @pytest.mark.parametrize("served", [A, B, None])
    def test_ends_where_steps_take_much_longer_while_prompt_tokens_are_unknown(
        self, fleet: Fleet, served: str | None
    ) -> None:
        fleet.decode_long(A, 0.01)
        fleet.decode_long(B, 0.03)
        if served is not None:
            fleet.finish(served, 0.2, tokens=1_000)
        found = fleet.times.of([A, B])
        assert found[B].step == pytest.approx(3 * found[A].step)

    def test_ends_where_the_cache_has_another_size(self, fleet: Fleet) -> None:
        fleet.engine(B, blocks=2 * BLOCKS)
        for address, token in ((A, 0.0001), (B, 0.0003)):
            fleet.serve(address, (0.01, token))
        found = fleet.times.of([A, B])
        assert found[B].token == pytest.approx(3 * found[A].token)

    def test_does_not_end_where_caches_differ_by_a_few_blocks(self, fleet: Fleet) -> None:
        for address, more in ((A, 0), (B, 10), (C, 20)):
            fleet.engine(address, blocks=BLOCKS + more)
        fleet.serve(A, (0.01, 0.0001))
        fleet.serve(B, (0.012, 0.00015))
        found = fleet.times.of([A, B, C])
        assert found[A] == found[B] == found[C]

    def test_includes_an_endpoint_without_requests_if_all_with_its_cache_are_equal(
        self, fleet: Fleet
    ) -> None:
        fleet.engine(C)
        fleet.engine(D, blocks=2 * BLOCKS)
        for address in (A, B):
            fleet.serve(address, FAST)
        assert set(fleet.times.of([A, B, C, D])) == {A, B, C}

    def test_of_an_endpoint_without_requests_is_unknown_if_there_are_two(
        self, fleet: Fleet
    ) -> None:
        fleet.engine(C)
        fleet.serve(A, FAST)
        fleet.serve(B, SLOW)
        assert set(fleet.times.of([A, B, C])) == {A, B}


class TestSlowness:
    @pytest.fixture(autouse=True)
    def kinds(self, fleet: Fleet) -> None:
        """Three kinds, which have caches of different sizes."""
        for number, address in enumerate((A, B, C), start=1):
            fleet.engine(address, blocks=number * BLOCKS)

    def test_of_steps_is_the_ratio_to_the_median_step(self, fleet: Fleet) -> None:
        for address, kind in ((A, (0.01, 0.0004)), (B, (0.02, 0.0001)), (C, (0.04, 0.0002))):
            fleet.serve(address, kind)
        assert slowness(fleet, A, B, C).steps == pytest.approx({A: 0.5, B: 1, C: 2})

    def test_of_prompts_is_that_of_a_usual_one_with_its_step(self, fleet: Fleet) -> None:
        for address, kind in ((A, (0.01, 0.0004)), (B, (0.02, 0.0001)), (C, (0.04, 0.0002))):
            fleet.serve(address, kind)
        for tokens, expected in ((0, (0.5, 1, 2)), (100, (1, 0.6, 1.2)), (1e9, (2, 0.5, 1))):
            found = slowness(fleet, A, B, C, tokens=tokens).prompts
            assert found == pytest.approx(dict(zip((A, B, C), expected, strict=True)))

    def test_of_prompts_is_that_of_a_step_while_prompts_are_short(self, fleet: Fleet) -> None:
        for address, step in ((A, 0.01), (B, 0.02), (C, 0.04)):
            fleet.decode_long(address, step)
        assert slowness(fleet, A, B, C).prompts == pytest.approx({A: 0.5, B: 1, C: 2})

    def test_has_limits(self, fleet: Fleet) -> None:
        for address, step in ((A, 0.001), (B, 0.02), (C, 0.4)):
            fleet.decode_long(address, step)
        found = slowness(fleet, A, B, C).steps
        assert found == pytest.approx({A: 1 / MOST_RATIO, B: 1, C: MOST_RATIO})

    def test_of_an_endpoint_without_requests_is_the_mean_of_the_others(self, fleet: Fleet) -> None:
        for address, step in ((A, 0.01), (B, 0.04), (D, 0.01)):
            fleet.decode_long(address, step)
        assert slowness(fleet, A, B, C, D).steps == pytest.approx({A: 1, B: 4, C: 2, D: 1})

    def test_says_which_endpoints_are_unknown(self, fleet: Fleet) -> None:
        for address, step in ((A, 0.01), (B, 0.04)):
            fleet.decode_long(address, step)
        assert slowness(fleet, A, B, C).unknown == {C}

    def test_of_prompts_is_that_of_as_many_steps_where_only_these_are_known(
        self, fleet: Fleet
    ) -> None:
        for address, kind in ((A, (0.01, 0.0001)), (B, (0.02, 0.0003))):
            fleet.serve(address, kind)
        fleet.decode_long(C, 0.06)
        found = slowness(fleet, A, B, C, D).prompts
        steps = (0.11 / 0.01 + 0.32 / 0.02) / 2  # of a prompt with 1,000 tokens
        assert found[C] == pytest.approx(steps * 0.06 / 0.32)
        assert found[D] == pytest.approx((found[A] + found[B] + found[C]) / 3)

    def test_of_prompts_does_not_change_sides_while_a_faster_gpu_is_known_first(
        self, fleet: Fleet
    ) -> None:
        fleet.serve(A, FAST)
        fleet.decode_long(B, 3 * FAST[0])
        found = slowness(fleet, A, B).prompts
        assert found[B] / found[A] == pytest.approx(3)

    def test_does_not_include_an_endpoint_that_left(self, fleet: Fleet) -> None:
        for address, kind in ((A, FAST), (B, SLOW)):
            fleet.serve(address, kind)
        fleet.times.forget(B)
        assert slowness(fleet, A, B) == Slowness({}, {})


def test_slowness_is_empty_in_a_fleet_of_one_kind_however_busy_some_are(fleet: Fleet) -> None:
    for address, busy in ((A, 1.0), (B, 2.0), (C, 4.0)):
        fleet.decode(address, 0.01 * busy)
        for _ in range(LEAST_READINGS):
            fleet.finish(address, 0.5 * busy**0.1, tokens=1_000)
    assert slowness(fleet, A, B, C) == Slowness({}, {})


def test_slowness_is_unknown_without_counters() -> None:
    times = EngineTimes()
    times.read(A, Report(Load(0, 0.0), 0), None, now=0.0)
    assert times.slowness([A], 1_000) is None


@given(st.lists(st.tuples(st.sampled_from([A, B, C]), st.floats(0, 5), st.integers(0, 5_000))))
def test_times_are_never_below_those_of_the_engine(events: list[tuple[str, float, int]]) -> None:
    """Delays make prompts and steps longer, but no engine seems faster."""
    fleet = Fleet()
    for address, delay, tokens in events:
        step, token = FAST
        fleet.decode(address, step * (1 + delay))
        fleet.respond(address, step + token * tokens + 2 * delay, tokens)
        fleet.finish(address, step + token * tokens + delay, tokens)
    found = fleet.times.of([A, B, C])
    assert all(times.step >= 0.99 * FAST[0] for times in found.values())
    assert all(times.token >= 0.49 * FAST[1] for times in found.values())
    assert len(set(found.values())) <= len({address for address, _, _ in events})
    for one, other in pairwise(sorted(set(found.values()))):
        shorter, longer = sorted((one.token, other.token))
        assert other.step > 1.2 * one.step or longer > 0.99 * MOST_BUSY * shorter


_COUNTER = st.floats(min_value=0, allow_nan=False, allow_infinity=False) | st.integers(0, 1_000)
_REPORTS = st.builds(
    Report,
    st.just(Load(0, 0.0)),
    st.just(0),
    blocks=st.none() | st.integers(1, 10),
    prompt_tokens=st.none() | _COUNTER,
    cached_tokens=st.none() | _COUNTER,
    first_tokens=st.none() | _COUNTER,
    first_token_seconds=st.none() | _COUNTER,
    steps=st.none() | st.builds(StepTotals, _COUNTER, _COUNTER, _COUNTER, _COUNTER),
    prefills=st.none() | st.builds(PrefillTotals, _COUNTER, _COUNTER, _COUNTER),
    preemptions=st.none() | _COUNTER,
)


@given(st.lists(st.tuples(st.sampled_from([A, B, C]), _REPORTS), max_size=30))
def test_slowness_keeps_its_limits_for_any_counters(events: list[tuple[str, Report]]) -> None:
    times = EngineTimes()
    for now, (address, report) in enumerate(events):
        times.read(address, report, 0.0, float(now))
        found = times.slowness([A, B, C], 1_000) or Slowness({}, {})
        for ratios in (found.prompts, found.steps):
            assert all(1 / MOST_RATIO <= ratio <= MOST_RATIO for ratio in ratios.values())
