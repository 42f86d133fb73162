from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from extproc.adapters.backoff import Backoff
from tests.core.builders import brief

seeds = st.integers(0, 2**32)


@brief
@given(seeds)
def test_first_wait_is_short_and_no_wait_exceeds_half_a_minute(seed: int) -> None:
    backoff = Backoff(Random(seed))
    assert backoff.next() == 0.8
    assert all(0.8 <= backoff.next() <= 30 for _ in range(2000))


@brief
@given(seeds)
def test_waits_grow_up_to_the_longest(seed: int) -> None:
    backoff = Backoff(Random(seed))
    longest = (0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 30, 30)
    for limit, wait in zip(longest, (backoff.next() for _ in longest), strict=True):
        assert limit / 2 <= wait <= limit


@brief
@given(seeds, st.integers(1, 50))
def test_waits_are_short_again_after_a_success(seed: int, failures: int) -> None:
    backoff = Backoff(Random(seed))
    for _ in range(failures):
        backoff.next()
    backoff.reset()
    assert backoff.next() == 0.8


def test_many_sidecars_do_not_retry_at_the_same_time() -> None:
    waits = set()
    for seed in range(100):
        backoff = Backoff(Random(seed))
        waits.add([backoff.next() for _ in range(8)][-1])
    assert len(waits) > 90
