"""The time that a new request waits on engines whose batches are full."""

from __future__ import annotations

import pytest

from extproc.core.fleet.full_batches import FullBatches
from extproc.core.fleet.report import Load, Report, StepTotals

A, B = "10.0.0.1:8000", "10.0.0.2:8000"


class Engine:
    """An engine that does five steps between two readings, in which two requests end."""

    def __init__(self) -> None:
        self.batches = FullBatches()
        self.now = 0.0
        self.steps = self.ended = 0

    def wait(
        self,
        running: float,
        waiting: float = 1,
        *,
        steps: int = 5,
        ends: int = 2,
        address: str = A,
    ) -> float:
        """Return the seconds that a new request waits, a fifth of a second later."""
        self.steps += steps
        self.ended += ends
        self.now += 0.2
        report = Report(
            Load(waiting, 0.3),
            running,
            finished=self.ended,
            steps=StepTotals(self.steps, 0, 0, 0),
        )
        return self.batches.read(address, report, self.now)

    def read(self, running: float, waiting: float = 1, *, steps: int = 5, address: str = A) -> bool:
        """Return True if a new request waits for a place in the batch."""
        return self.wait(running, waiting, steps=steps, address=address) > 0


@pytest.fixture
def engine() -> Engine:
    return Engine()


@pytest.fixture
def full(engine: Engine) -> Engine:
    """An engine with at most 64 requests in its batch."""
    for running in (64, 63, 64, 64, 62, 64):
        found = engine.read(running)
    assert found
    return engine


def test_batch_is_full_after_several_readings_with_a_queue(engine: Engine) -> None:
    assert [engine.read(64) for _ in range(6)] == [False] * 4 + [True, True]


def test_new_request_waits_until_those_before_it_and_one_more_have_a_place(full: Engine) -> None:
    assert full.wait(64, waiting=1) == pytest.approx(0.2)
    assert full.wait(64, waiting=2) == pytest.approx(0.3)


def test_queue_counts_up_to_a_share_of_the_batch(full: Engine) -> None:
    # Routing cannot resolve an overload.
    assert full.wait(64, waiting=500) == pytest.approx(0.3)


def test_wait_does_not_count_how_often_requests_end_in_smaller_batches(full: Engine) -> None:
    for _ in range(50):  # none ends
        full.wait(20, waiting=0, ends=0)
    assert full.wait(64, waiting=1) == pytest.approx(0.2)


def test_batch_without_a_queue_is_not_full(full: Engine) -> None:
    assert not full.read(64, waiting=0)
    assert full.read(64)


def test_batch_that_grows_is_not_full(full: Engine) -> None:
    assert not full.read(65)


def test_smaller_batch_has_a_queue_for_another_reason(full: Engine) -> None:
    assert not full.read(40)
    assert not full.read(64)


def test_batch_of_few_requests_is_never_full(engine: Engine) -> None:
    assert not any(engine.read(31) for _ in range(20))


def test_largest_batch_of_32_may_be_a_little_smaller(engine: Engine) -> None:
    for running in (32, 31, 32, 31, 31, 31):
        found = engine.read(running)
    assert found


def test_wait_on_an_engine_that_hangs_is_limited(full: Engine) -> None:
    for _ in range(5_000):
        found = full.wait(64, ends=0)
    assert found == 60


def test_wait_does_not_count_what_ended_while_the_batch_grew(engine: Engine) -> None:
    engine.wait(20, waiting=0, ends=0)
    engine.wait(64, ends=500)
    for _ in range(9):
        found = engine.wait(64, waiting=1)
    assert found == pytest.approx(0.2)


def test_readings_of_one_long_step_count_once(engine: Engine) -> None:
    assert not any(engine.read(64, steps=0) for _ in range(20))


@pytest.mark.parametrize(
    "report",
    [
        Report(Load(9, 0.3), 64, finished=5),
        Report(Load(9, 0.3), 64, steps=StepTotals(5, 0, 0, 0)),
    ],
)
def test_engine_without_counters_of_steps_and_ended_requests_is_never_full(report: Report) -> None:
    batches = FullBatches()
    assert not any(batches.read(A, report, now) for now in range(20))


def test_engine_on_which_no_request_ends_has_no_known_wait() -> None:
    batches = FullBatches()
    for steps in range(20):
        report = Report(Load(9, 0.3), 64, finished=5, steps=StepTotals(steps, 0, 0, 0))
        assert batches.read(A, report, now=steps) == 0


def test_each_endpoint_has_a_batch_of_its_own(full: Engine) -> None:
    assert not full.read(64, address=B)


def test_batch_is_unknown_again_after_a_restart(full: Engine) -> None:
    full.batches.forget(A)
    assert not full.read(64)
