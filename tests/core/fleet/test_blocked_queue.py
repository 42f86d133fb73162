from __future__ import annotations

import pytest

from extproc.core.fleet.blocked_queue import BlockedQueues
from extproc.core.fleet.report import Load, Report

A, B = "10.0.0.1:8000", "10.0.0.2:8000"


class Engine:
    """An engine on which one request ends between two readings."""

    def __init__(self) -> None:
        self.queues = BlockedQueues()
        self.now = 1000.0
        self.report = Report(Load(0, 0.6), 4, finished=100, first_tokens=104, preemptions=7)

    def read(
        self,
        *,
        waiting: float = 1,
        preempted: float = 0,
        first_tokens: float = 0,
        address: str = A,
        seconds: float = 5.0,
    ) -> bool:
        """Return True if the queue is blocked this number of seconds after the last reading."""
        self.now += seconds
        counted = self.report
        assert counted.finished is not None
        assert counted.first_tokens is not None
        assert counted.preemptions is not None
        self.report = counted._replace(
            load=Load(waiting, 0.6),
            finished=counted.finished + 1,
            first_tokens=counted.first_tokens + first_tokens,
            preemptions=counted.preemptions + preempted,
        )
        return self.queues.read(address, self.report, self.now)


@pytest.fixture
def engine() -> Engine:
    read_once = Engine()
    read_once.read(waiting=0)
    return read_once


def test_queue_is_blocked_from_a_preemption_on(engine: Engine) -> None:
    assert not engine.read()
    assert engine.read(preempted=1)
    assert engine.read()


def test_queue_moves_once_a_request_gets_its_first_token(engine: Engine) -> None:
    engine.read(preempted=1)
    assert not engine.read(first_tokens=1)
    assert not engine.read()


def test_first_token_before_a_preemption_is_none_after_it(engine: Engine) -> None:
    assert engine.read(preempted=1, first_tokens=1)


def test_empty_queue_is_not_blocked(engine: Engine) -> None:
    assert not engine.read(waiting=0, preempted=1)
    assert not engine.read(waiting=1)


def test_preemptions_before_the_first_reading_do_not_count() -> None:
    assert not Engine().read(preempted=1)


def test_queue_of_an_engine_that_often_ends_requests_is_not_blocked(engine: Engine) -> None:
    quick = [engine.read(preempted=1, seconds=0.2) for _ in range(600)]
    assert not quick[-1]
    slow = [engine.read(preempted=1, seconds=5) for _ in range(20)]
    assert slow[-1]
    assert not slow[0]


def test_counters_that_begin_again_are_no_evidence(engine: Engine) -> None:
    engine.report = engine.report._replace(finished=0, first_tokens=0, preemptions=0)
    assert not engine.read()


def test_queue_of_an_engine_without_counters_is_not_blocked() -> None:
    queues = BlockedQueues()
    assert not any(queues.read(A, Report(Load(1, 1.0), 4), now) for now in range(4))


def test_preemption_is_enough_if_the_other_counters_are_missing() -> None:
    queues = BlockedQueues()
    waits = Report(Load(1, 0.6), 4, preemptions=7)
    assert not queues.read(A, waits, 0)
    assert queues.read(A, waits._replace(preemptions=8), 1)


def test_endpoints_do_not_share_their_readings(engine: Engine) -> None:
    other = Engine()
    other.queues = engine.queues
    other.read(address=B)
    engine.read(preempted=1)
    assert not other.read(address=B)


def test_readings_of_an_endpoint_that_left_are_forgotten(engine: Engine) -> None:
    engine.read(preempted=1)
    engine.queues.forget(A)
    assert not engine.read()
    assert not engine.read()
