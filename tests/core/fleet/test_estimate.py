from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.core.fleet.estimate import Estimate, estimates
from extproc.core.fleet.signals import Signals
from extproc.core.schema import SignalsSpec
from tests.core.builders import endpoint, thorough
from tests.core.clock import Clock, report, signals

A, B, C = endpoint("a"), endpoint("b"), endpoint("c")
SPEC = SignalsSpec()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def known(clock: Clock) -> Signals:
    return signals(clock, "a", "b", "c")


def estimate(known: Signals, loads: dict[str, int], *others: str) -> list[Estimate]:
    return estimates([A, B, C], loads, known, SPEC)


def queues(known: Signals, loads: dict[str, int]) -> list[float]:
    return [one.queue for one in estimate(known, loads)]


def test_fresh_reading_is_the_estimate(known: Signals) -> None:
    known.record_scrape("a", report(waiting=4, running=10, kv_usage=0.5), inflight=14)
    known.record_scrape("b", report(waiting=0, running=2, kv_usage=0.1), inflight=2)
    known.record_scrape("c", report(), inflight=0)
    found = estimate(known, {"a": 14, "b": 2})
    assert [(e.endpoint, e.inflight) for e in found] == [(A, 14), (B, 2), (C, 0)]
    assert [e.queue for e in found] == [4, 0, 0]
    assert [e.kv_usage for e in found] == pytest.approx([0.5, 0.1, 0])


class TestBetweenReadings:
    def test_requests_sent_since_count_as_waiting_and_use_cache(self, known: Signals) -> None:
        for name in "abc":
            known.record_scrape(name, report(waiting=1, running=10, kv_usage=0.5), inflight=11)
        found = estimate(known, {"a": 11, "b": 15, "c": 11})
        assert [e.queue for e in found] == [1, 5, 1]
        # A mean running request holds a twentieth of a cache.
        assert [e.kv_usage for e in found] == pytest.approx([0.5, 0.7, 0.5])

    def test_ended_requests_reduce_the_estimate(self, known: Signals) -> None:
        known.record_scrape("a", report(waiting=3, running=10, kv_usage=0.5), inflight=13)
        (first, *_) = estimate(known, {"a": 11})
        assert first.queue == 1
        assert first.kv_usage == pytest.approx(0.4)

    def test_estimate_is_never_negative(self, known: Signals) -> None:
        known.record_scrape("a", report(waiting=1, running=4, kv_usage=0.1), inflight=50)
        (first, *_) = estimate(known, {})
        assert (first.queue, first.kv_usage) == (0, 0)

    def test_reading_includes_requests_of_other_sidecars(self, known: Signals) -> None:
        known.record_scrape("a", report(waiting=30, running=100), inflight=2)
        assert queues(known, {"a": 2})[0] == 30
        assert queues(known, {"a": 3})[0] == 31


class TestHangingEngine:
    def test_shows_as_requests_missing_from_its_metrics(self, known: Signals) -> None:
        # Each scrape of its metrics still reports nothing running.
        known.record_scrape("a", report(), inflight=7)
        known.record_scrape("b", report(running=7, kv_usage=0.1), inflight=7)
        found = estimate(known, {"a": 7, "b": 7})
        assert [e.queue for e in found[:2]] == [7, 0]
        assert found[0].kv_usage > 0


class TestStaleReading:
    def test_counts_as_the_mean_plus_own_requests(self, known: Signals) -> None:
        known.record_scrape("a", report(waiting=4, running=10, kv_usage=0.4), inflight=10)
        known.record_scrape("b", report(waiting=0, running=10, kv_usage=0.2), inflight=20)
        found = estimate(known, {"a": 10, "b": 20, "c": 15})
        assert found[2].queue == 2
        assert found[2].kv_usage == pytest.approx(0.3)
        found = estimate(known, {"a": 10, "b": 20, "c": 18})
        assert found[2].queue == 5

    def test_with_zeros_is_not_preferred(self, known: Signals, clock: Clock) -> None:
        known.record_scrape("c", report(), inflight=0)
        clock.advance(SPEC.stale_after_seconds + 0.1)
        known.record_scrape("a", report(waiting=4, running=10, kv_usage=0.4), inflight=14)
        known.record_scrape("b", report(waiting=4, running=10, kv_usage=0.4), inflight=14)
        found = estimate(known, {"a": 14, "b": 14, "c": 14})
        assert len({e.queue for e in found}) == 1
        assert len({e.kv_usage for e in found}) == 1

    def test_without_own_requests_is_not_better_than_the_mean(self, known: Signals) -> None:
        for name in "ab":
            known.record_scrape(name, report(waiting=2, running=18, kv_usage=0.5), inflight=20)
        found = estimate(known, {"a": 20, "b": 20})
        assert (found[2].queue, found[2].kv_usage) == (2, 0.5)

    def test_of_all_endpoints_leaves_in_flight_requests_only(self, known: Signals) -> None:
        found = estimate(known, {"a": 3, "c": 5})
        assert [e.queue for e in found] == [3, 0, 5]
        assert {e.kv_usage for e in found} == {0}


class TestNewEndpoint:
    """The others have 10 requests each, none of them waiting."""

    @pytest.fixture
    def joined(self, clock: Clock) -> Signals:
        known = signals(clock, "a", "b")
        known.set_endpoints(["a", "b", "c"])
        for name in "ab":
            known.record_scrape(name, report(running=10, kv_usage=0.5), inflight=10)
        known.record_scrape("c", report(), inflight=0)
        return known

    def test_looks_full_after_its_first_request(self, joined: Signals) -> None:
        assert queues(joined, {"a": 10, "b": 10}) == [0, 0, 0]
        assert queues(joined, {"a": 10, "b": 10, "c": 1}) == [0, 0, 1]

    def test_gets_a_growing_share_of_the_mean(self, joined: Signals, clock: Clock) -> None:
        clock.advance(SPEC.slow_start_seconds / 2)
        for name in "ab":
            joined.record_scrape(name, report(running=10, kv_usage=0.5), inflight=10)
        joined.record_scrape("c", report(running=5), inflight=5)
        assert queues(joined, {"a": 10, "b": 10, "c": 5}) == [0, 0, 0]
        assert queues(joined, {"a": 10, "b": 10, "c": 6}) == [0, 0, 1]

    def test_with_its_share_does_not_have_an_emptier_cache_than_others(
        self, joined: Signals, clock: Clock
    ) -> None:
        assert [e.kv_usage for e in estimate(joined, {"a": 10, "b": 10})] == [0.5, 0.5, 0.5]
        clock.advance(SPEC.slow_start_seconds / 2)
        for name in "ab":
            joined.record_scrape(name, report(waiting=3, running=10, kv_usage=0.5), inflight=13)
        joined.record_scrape("c", report(), inflight=0)
        found = estimate(joined, {"a": 13, "b": 13, "c": 7})
        assert found[2].queue == 3 + 7
        assert found[2].kv_usage == pytest.approx(0.5 + 7 * 0.05)
        found = estimate(joined, {"a": 13, "b": 13, "c": 6})
        assert found[2].kv_usage == pytest.approx(6 * 0.05)

    def test_is_like_the_others_after_slow_start(self, joined: Signals, clock: Clock) -> None:
        clock.advance(SPEC.slow_start_seconds)
        for name in "abc":
            joined.record_scrape(name, report(running=10, kv_usage=0.5), inflight=10)
        assert queues(joined, {"a": 10, "b": 10, "c": 10}) == [0, 0, 0]

    def test_is_not_limited_if_all_appeared_together(self, clock: Clock) -> None:
        known = Signals(clock)
        known.set_endpoints(["a", "b", "c"])
        for name in "abc":
            known.record_scrape(name, report(running=60), inflight=60)
        assert queues(known, {"a": 60, "b": 60, "c": 60}) == [0, 0, 0]

    def test_is_limited_relative_to_slightly_older_ones(self, clock: Clock) -> None:
        known = Signals(clock)
        known.set_endpoints(["a", "b"])
        clock.advance(4)
        known.set_endpoints(["a", "b", "c"])
        clock.advance(4)
        for name in "abc":
            known.record_scrape(name, report(running=10), inflight=10)
        # It is half as old as the others, so it may have half of their requests.
        assert queues(known, {"a": 10, "b": 10, "c": 10}) == [0, 0, 5]

    def test_is_not_limited_without_slow_start(self, joined: Signals) -> None:
        at_once = SignalsSpec.model_validate({"slowStartSeconds": 0})
        joined.record_scrape("c", report(running=8), inflight=8)
        found = estimates([A, B, C], {"a": 10, "b": 10, "c": 8}, joined, at_once)
        assert [e.queue for e in found] == [0, 0, 0]


def test_endpoints_without_scrapes_are_estimated_by_own_requests() -> None:
    found = estimates([A, B], {"b": 2}, Signals(Clock()), SPEC)
    assert [e.queue for e in found] == [0, 2]


figures = st.tuples(
    st.integers(0, 50), st.integers(0, 50), st.floats(0, 1), st.integers(0, 90), st.integers(0, 90)
)


@thorough
@given(st.lists(st.none() | figures, min_size=1, max_size=6))
def test_estimates_are_finite_and_grow_with_requests(
    said: list[tuple[int, int, float, int, int] | None],
) -> None:
    fleet = [endpoint(str(i)) for i in range(len(said))]
    known = signals(Clock(), *(e.address for e in fleet))
    loads: dict[str, int] = {}
    for e, one in zip(fleet, said, strict=True):
        if one is not None:
            known.record_scrape(e.address, report(*one[:3]), inflight=one[3])
            loads[e.address] = one[4]
    before = estimates(fleet, loads, known, SPEC)
    assert all(0 <= e.queue < 1000 and 0 <= e.kv_usage < 1000 for e in before)
    loads[fleet[0].address] = loads.get(fleet[0].address, 0) + 1
    after = estimates(fleet, loads, known, SPEC)
    assert after[0].queue >= before[0].queue
    assert after[0].kv_usage >= before[0].kv_usage
