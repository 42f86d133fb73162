from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.core.fleet.copies import WINDOW_SECONDS, Copies
from extproc.core.fleet.prefix_index import PrefixIndex
from tests.core.clock import Clock

A, B = "10.0.0.1:8000", "10.0.0.2:8000"


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def copies(clock: Clock) -> Copies:
    index = PrefixIndex(clock)
    for address in (A, B):
        index.resize(address, 64_000)
    return Copies(clock, index)


def ask(copies: Copies, clock: Clock, seconds: float, per_second: int = 10) -> None:
    """Send requests with one prefix at a constant rate."""
    for _ in range(round(seconds * per_second)):
        clock.now += 1 / per_second
        copies.requested(7)


@given(st.sampled_from([5, 29, 31, 45, 60, 61, 300]))
def test_demand_is_the_rate_of_requests_with_the_prefix(seconds: float) -> None:
    clock = Clock()
    copies = Copies(clock, PrefixIndex(clock))
    ask(copies, clock, seconds)
    assert copies.demand(7) == pytest.approx(10, rel=0.1)
    assert copies.demand(8) == 0


def test_demand_for_a_new_prefix_is_known_soon(copies: Copies, clock: Clock) -> None:
    clock.now += 20
    ask(copies, clock, 4)
    assert copies.demand(7) == pytest.approx(10, rel=0.1)


def test_one_request_is_no_high_demand(copies: Copies) -> None:
    copies.requested(7)
    assert copies.demand(7) < 0.4


def test_demand_falls_to_zero_without_requests(copies: Copies, clock: Clock) -> None:
    ask(copies, clock, 60)
    before = copies.demand(7)
    clock.now += WINDOW_SECONDS / 2
    assert copies.demand(7) < before
    clock.now += 2 * WINDOW_SECONDS
    assert copies.demand(7) == 0


def test_prefix_is_in_use_since_its_first_request(copies: Copies, clock: Clock) -> None:
    assert copies.used_seconds(7) == 0
    ask(copies, clock, 200)
    assert copies.used_seconds(7) == pytest.approx(200, abs=0.2)
    assert copies.used_seconds(8) == 0


def test_prefix_that_was_not_used_for_a_window_counts_as_new(copies: Copies, clock: Clock) -> None:
    ask(copies, clock, 100)
    clock.now += 2 * WINDOW_SECONDS
    assert copies.used_seconds(7) == 0
    ask(copies, clock, 5)
    assert copies.used_seconds(7) == pytest.approx(5, abs=0.2)


def work(copies: Copies, clock: Clock) -> None:
    """Let an endpoint compute 3,200 tokens a second, and read the rate once a second."""
    for _ in range(600):
        copies.computed(A, 3_200)
        clock.now += 1
        copies.kept_seconds([A])


def test_idle_cache_keeps_its_contents_for_ten_minutes_at_most(copies: Copies) -> None:
    assert copies.kept_seconds([A]) == 600


@pytest.mark.parametrize("start", [0.0, 1000.0])
def test_cache_keeps_its_contents_until_it_has_computed_as_much_again(start: float) -> None:
    clock = Clock()
    clock.now = start
    index = PrefixIndex(clock)
    index.resize(A, 64_000)
    copies = Copies(clock, index)
    work(copies, clock)
    assert copies.kept_seconds([A]) == pytest.approx(20, rel=0.1)


def test_mean_of_several_caches_counts(copies: Copies, clock: Clock) -> None:
    work(copies, clock)
    assert copies.kept_seconds([A, B]) == pytest.approx(40, rel=0.1)


def test_endpoint_that_left_is_forgotten(copies: Copies) -> None:
    copies.computed(A, 1e6)
    assert copies.kept_seconds([A]) < 10
    copies.forget(A)
    assert copies.kept_seconds([A]) == 600
