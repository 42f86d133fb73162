from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from extproc.adapters.observability.log_sampler import BURST, LINES_PER_SECOND, LogSampler
from tests.core.builders import brief


class Clock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_writes_a_burst_then_one_line_per_second() -> None:
    clock = Clock()
    sampler = LogSampler(clock)
    assert [sampler.admit("a") for _ in range(BURST + 3)] == [0] * BURST + [None] * 3
    clock.now += 0.5
    assert sampler.admit("a") is None
    clock.now += 0.5
    assert [sampler.admit("a") for _ in range(3)] == [4, None, None]
    clock.now += 1
    assert sampler.admit("a") == 2


def test_kinds_do_not_suppress_each_other() -> None:
    sampler = LogSampler(Clock())
    for _ in range(100):
        sampler.admit("flooded")
    assert sampler.admit("other") == 0


def test_quiet_time_restores_the_burst_only() -> None:
    clock = Clock()
    sampler = LogSampler(clock)
    for _ in range(100):
        sampler.admit("a")
    clock.now += 3600
    written = [sampler.admit("a") for _ in range(BURST + 1)]
    assert written == [100 - BURST] + [0] * (BURST - 1) + [None]


@brief
@given(st.lists(st.floats(0, 10), max_size=100))
def test_every_line_is_written_or_counted_within_the_rate(pauses: list[float]) -> None:
    clock = Clock()
    sampler = LogSampler(clock)
    written = reported = 0
    for pause in pauses:
        clock.now += pause
        suppressed = sampler.admit("a")
        if suppressed is not None:
            written += 1
            reported += suppressed
    clock.now += 3600
    last = sampler.admit("a")
    assert last is not None
    assert written + reported + last == len(pauses)
    assert written <= BURST + sum(pauses) * LINES_PER_SECOND + 1e-6
