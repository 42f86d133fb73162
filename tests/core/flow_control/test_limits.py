"""Limits are learned from what the engines report, and from latencies if they report nothing."""

from __future__ import annotations

import pytest

from extproc.core.fleet.endpoint import Endpoint
from extproc.core.fleet.ledger import Ledger
from extproc.core.fleet.report import Load, Report
from extproc.core.fleet.signals import Signals
from extproc.core.flow_control.latency_limit import LatencyLimit
from extproc.core.flow_control.limits import Limits
from extproc.core.flow_control.steps import Steps

ADDRESS = "10.0.0.1:8000"


class Engine:
    """One endpoint, whose metrics a test sets."""

    def __init__(self, blocks: int | None = 100_000) -> None:
        self.now = 0.0
        self.blocks = blocks
        self.ledger = Ledger()
        self.signals = Signals(lambda: self.now, self.ledger)
        self.signals.set_endpoints([ADDRESS])
        self.limits = Limits(self.signals, Steps(lambda: self.now))

    @property
    def limit(self) -> float:
        return self.limits.of(ADDRESS, 1000.0)

    def reads(self, running: float, waiting: float = 0.0, usage: float = 0.3) -> float:
        """Scrape the engine while it has these requests, and return the limit."""
        self.now += 0.2
        for _ in range(int(running + waiting) - self.ledger.loads.get(ADDRESS, 0)):
            self.ledger.acquire("llama", Endpoint(ADDRESS, ADDRESS))
        report = Report(Load(waiting, usage), running, block_size=16, blocks=self.blocks)
        self.signals.record_scrape(ADDRESS, report, int(running + waiting))
        return self.limit


def test_the_first_limit_is_what_fits_into_the_kv_cache() -> None:
    assert Engine(blocks=5_000).reads(0) == 80
    assert Engine(blocks=1_000_000).reads(0) == 256
    assert Engine(blocks=None).reads(0) == 256


def test_a_full_batch_is_the_limit_and_a_little_more() -> None:
    engine = Engine()
    engine.reads(64, waiting=30)
    assert engine.reads(64, waiting=30) == 66
    assert engine.reads(256, waiting=30) == 66
    assert engine.reads(256, waiting=30) == 260


def test_requests_that_wait_while_the_batch_grows_lower_no_limit() -> None:
    engine = Engine()
    for running in (4, 10, 20, 40, 80):
        assert engine.reads(running, waiting=30) == 256


def test_one_reading_with_a_queue_lowers_no_limit() -> None:
    engine = Engine()
    engine.reads(10)
    assert engine.reads(10, waiting=20) == 256
    assert engine.reads(30) == 256


def test_a_limit_that_is_not_reached_does_not_grow() -> None:
    engine = Engine(blocks=5_000)
    assert engine.reads(10) == 80
    assert engine.reads(20) == 80


def test_a_limit_that_is_reached_without_a_queue_grows_fast_until_the_batch_is_full() -> None:
    engine = Engine(blocks=5_000)
    assert engine.reads(80) == 100
    assert engine.reads(100) == 125


def test_requests_that_replace_the_ended_ones_of_some_steps_do_not_fill_a_batch() -> None:
    """With short responses, several end with each step, and as many wait for the next step."""
    engine = Engine()
    for step in range(30):
        for _ in range(5):
            engine.limits.prompts.step_ended(ADDRESS, 0.1 * step)
    engine.now = 3.0
    for _ in range(4):
        assert engine.reads(60, waiting=20) == 256
    engine.reads(60, waiting=90)
    assert engine.reads(60, waiting=90) == pytest.approx(60 + 8 * 5)


def test_prompts_for_the_next_step_do_not_fill_a_batch() -> None:
    engine = Engine()
    for running in (10, 11, 11):
        for _ in range(4):
            engine.limits.prompts.sent(ADDRESS, 100.0, engine.now + 0.2)
        assert engine.reads(running, waiting=4) == 256


def test_later_it_grows_in_rising_steps_until_something_waits() -> None:
    engine = Engine()
    engine.reads(64, waiting=10)
    assert engine.reads(64, waiting=10) == 66
    assert [round(engine.reads(engine.limit) / 66, 3) for _ in range(4)] == [
        1.031,
        1.096,
        1.233,
        1.387,
    ]
    running = engine.limit
    assert engine.reads(running, waiting=9) == running
    assert engine.reads(running, waiting=9) == pytest.approx(running + 2)


def test_prompts_that_wait_for_longer_than_a_step_fill_a_batch() -> None:
    engine = Engine()
    for _ in range(4):
        engine.limits.prompts.sent(ADDRESS, 100.0, 0.0)
    engine.now = 3.0
    engine.reads(11, waiting=4)
    assert engine.reads(11, waiting=4) == 13


def test_a_batch_that_shrinks_because_requests_got_longer_lowers_the_limit() -> None:
    engine = Engine()
    engine.reads(64, waiting=10)
    assert engine.reads(64, waiting=10) == 66
    assert engine.reads(32, waiting=40) == 34


def test_a_filling_kv_cache_limits_the_requests_before_it_is_full() -> None:
    engine = Engine(blocks=5_000)
    assert engine.reads(40, usage=0.4) == 80
    assert engine.reads(60, usage=0.75) == pytest.approx(76)


def test_one_reading_changes_the_limit_once() -> None:
    engine = Engine(blocks=5_000)
    assert engine.reads(80) == 100
    assert engine.limit == engine.limit == 100


def test_an_endpoint_that_left_is_forgotten() -> None:
    engine = Engine(blocks=5_000)
    engine.reads(80)
    engine.limits.keep_only([])
    engine.signals.set_endpoints([])
    engine.signals.set_endpoints([ADDRESS])
    assert engine.limit == LatencyLimit().limit
    assert engine.reads(0) == 80


class TestWithoutMetrics:
    def test_the_limit_grows_while_latencies_stay_the_same(self) -> None:
        limit = LatencyLimit()
        first = limit.limit
        for _ in range(50):
            limit.record(0.1, inflight=int(limit.limit))
        assert limit.limit > 2 * first

    def test_the_limit_shrinks_while_latencies_rise(self) -> None:
        limit = LatencyLimit()
        for _ in range(50):
            limit.record(0.1, inflight=int(limit.limit))
        before = limit.limit
        for _ in range(30):
            limit.record(1.0, inflight=int(limit.limit))
        assert limit.limit < before / 2

    def test_latencies_without_load_change_nothing(self) -> None:
        limit = LatencyLimit()
        for _ in range(50):
            limit.record(0.1, inflight=1)
        assert limit.limit == LatencyLimit().limit

    def test_the_limit_stays_within_its_bounds(self) -> None:
        limit = LatencyLimit()
        for seconds in (0.001, 100.0, 0.0, 1e-9) * 500:
            limit.record(seconds, inflight=1000)
            assert 4 <= limit.limit <= 1000

    def test_it_is_used_until_metrics_arrive(self) -> None:
        engine = Engine()
        assert engine.limit == LatencyLimit().limit
        for _ in range(50):
            engine.limits.responded(ADDRESS, 0.1, int(engine.limit))
        assert engine.limit > LatencyLimit().limit
        assert engine.reads(0) == 256
