"""The sidecar follows the steps of engines by the engines' own counters."""

from __future__ import annotations

from random import Random

import pytest

from extproc.core.fleet.report import StepTotals
from extproc.core.flow_control.step_times import StepTimes
from extproc.core.flow_control.steps import Step, Steps

BASE, PER_TOKEN, PROMPT = 0.07, 0.00025, 500.0
BATCH = 20
A, B = "10.0.0.1:8000", "10.0.0.2:8000"


class Engine:
    """An engine that runs steps without a pause, and is read five times a second."""

    def __init__(self, step: Step, rng: Random) -> None:
        self.step = step
        self.rng = rng
        self.began, self.ends = 0.0, BASE
        self.number, self.computed = 0, 0.0
        self.present = 0.0
        self.seconds = 0.0
        self.sent = 0.0
        self.processes = 1
        """Processes that count each step."""

    def run(self, until: float, now: float = 0.0) -> None:
        """Run steps and readings; each second step computes a prompt."""
        read_at = now + 0.1
        while min(self.ends, read_at) <= until:
            if read_at < self.ends:
                self.step.read(self.totals(), read_at)
                read_at += self.rng.uniform(0.18, 0.22)
            else:
                self._next_step()

    def totals(self) -> StepTotals:
        number = self.number * self.processes
        return StepTotals(number, self.computed, BATCH * self.seconds, BATCH * self.number)

    def _next_step(self) -> None:
        self.number += 1
        self.computed += self.present
        self.seconds += self.ends - self.began
        self.began = self.ends
        self.present = self.sent
        self.sent = 0.0
        self.ends = self.began + BASE + PER_TOKEN * self.present
        if self.rng.random() < 0.5:
            self.sent = self.rng.uniform(0.5, 1.5) * PROMPT
            self.step.sent(self.sent, self.began + 0.5 * BASE)


@pytest.mark.parametrize("seed", range(8))
def test_steps_are_known_before_a_response_has_ended(seed: int) -> None:
    engine = Engine(Step(StepTimes()), Random(seed))
    engine.run(8.0)
    assert engine.step.times.base == pytest.approx(BASE, rel=0.05)
    assert engine.step.times.per_token == pytest.approx(PER_TOKEN, rel=0.05)
    errors = []
    for one in range(40):
        until = 8.0 + 0.15 * one
        engine.run(until, now=until - 0.15)
        ends = engine.step.ends(until)
        assert ends is not None
        errors.append(abs(ends - engine.ends))
    assert sorted(errors)[len(errors) // 2] < 0.3 * BASE


def test_counters_of_several_processes_are_not_trusted() -> None:
    engine = Engine(Step(StepTimes()), Random(1))
    engine.processes = 4
    engine.run(8.0)
    assert engine.step.ends(8.0) is None


def test_an_engine_that_restarts_is_followed_again() -> None:
    step = Step(StepTimes())
    Engine(step, Random(1)).run(4.0)
    again = Engine(step, Random(2))
    again.began, again.ends = 4.0, 4.0 + BASE
    again.run(12.0, now=4.0)
    assert step.times.base == pytest.approx(BASE, rel=0.05)


def known(steps: Steps, address: str, began: float) -> Step:
    """Return the step of an endpoint that began at this time, and computes no prompt."""
    step = steps.of(address)
    for one in range(40, -1, -1):
        step.ended(began - one * BASE)
    return step


def test_a_step_stays_free_if_no_other_begins_soon() -> None:
    steps = Steps(lambda: 1.0)
    known(steps, A, 1.0 - BASE + 0.005)
    known(steps, B, 0.999)
    assert steps.kept_free({A}, {A, B}) == {A}


def test_no_step_stays_free_if_another_begins_soon() -> None:
    steps = Steps(lambda: 1.0)
    known(steps, A, 1.0 - BASE + 0.005)
    known(steps, B, 1.0 - BASE + 0.02)
    assert steps.kept_free({A}, {A, B}) == set()


def test_only_one_step_stays_free_for_each_prompt() -> None:
    now = [1.0]
    steps = Steps(lambda: now[0])
    step = known(steps, A, 1.0 - BASE + 0.005)
    assert steps.kept_free({A}, {A}) == {A}
    now[0] += BASE
    assert steps.kept_free({A}, {A}) == set()
    step.sent(PROMPT, now[0])
    now[0] += BASE
    assert steps.kept_free({A}, {A}) == {A}


def test_a_step_that_may_end_too_early_is_not_the_soonest() -> None:
    steps = Steps(lambda: 1.0)
    known(steps, A, 1.0 - BASE + 0.0001).sent(PROMPT, 0.98)
    known(steps, B, 1.0 - BASE + 0.015)
    assert steps.soonest({A, B}, PROMPT) == {B}
