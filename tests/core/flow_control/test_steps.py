"""The sidecar follows the steps of engines by the ends of responses."""

from __future__ import annotations

from math import inf

from hypothesis import given
from hypothesis import strategies as st

from extproc.core.flow_control.step_times import LONGEST_STEP_SECONDS, StepTimes
from extproc.core.flow_control.steps import Step, Steps
from tests.core.flow_control.scene import Flow, Sent

BASE, PER_TOKEN = 0.1, 0.0002
PROMPT = 500.0
WITH_PROMPT = BASE + PER_TOKEN * PROMPT
A, B = "10.0.0.1:8000", "10.0.0.2:8000"
CLASSES = [{"name": "chat", "priority": 1}, {"name": "batch", "priority": -1}]


def teach(step: Step, until: float = 0.0) -> None:
    """Let responses end with each step until then, with prompts in some steps."""
    seconds = [BASE, BASE, WITH_PROMPT] * 24
    now = until - sum(seconds)
    for one in seconds:
        if one == WITH_PROMPT:
            step.sent(PROMPT, now - BASE / 2)
        step.ended(now)
        now += one
    step.ended(until)


def taught() -> Step:
    """Return the present step of an engine, which began at the time 0 and computes no prompt."""
    step = Step(StepTimes())
    teach(step)
    return step


def about(seconds: float | None, expected: float) -> bool:
    return seconds is not None and abs(seconds - expected) < 0.005


def test_nothing_is_known_at_first() -> None:
    step = Step(StepTimes())
    step.sent(PROMPT, 0.0)
    step.ended(0.1)
    assert step.ends(0.15) is None
    assert step.due(0.15) is None


def test_a_step_ends_after_its_duration() -> None:
    assert about(taught().ends(0.01), BASE)


def test_a_step_with_a_prompt_takes_longer() -> None:
    step = taught()
    step.sent(PROMPT, BASE / 2)
    step.ended(BASE)
    assert about(step.ends(BASE + 0.01), BASE + WITH_PROMPT)


def test_a_prompt_on_its_way_misses_the_step() -> None:
    step = taught()
    step.sent(PROMPT, BASE - 0.002)
    step.ended(BASE)
    assert about(step.ends(BASE + 0.01), 2 * BASE)


def test_steps_without_an_end_are_followed_for_some_time() -> None:
    step = taught()
    step.sent(PROMPT, BASE / 2)
    assert about(step.ends(1.5 * BASE), BASE + WITH_PROMPT)
    assert about(step.ends(1.5 * BASE + WITH_PROMPT), 2 * BASE + WITH_PROMPT)
    assert step.ends(20 * BASE) is None


def test_an_end_shortly_after_the_predicted_time_is_that_of_the_same_step() -> None:
    step = taught()
    step.sent(PROMPT, BASE / 2)
    assert about(step.ends(BASE + 0.02), BASE + WITH_PROMPT)
    step.ended(BASE + 0.02)
    assert about(step.ends(BASE + 0.03), BASE + 0.02 + WITH_PROMPT)


def test_ends_of_the_same_step_count_once() -> None:
    step = taught()
    for one in range(5):
        step.ended(BASE + 0.002 * one)
    assert about(step.ends(BASE + 0.01), 2 * BASE)


def test_a_request_that_may_wait_is_due_shortly_before_the_step_ends() -> None:
    due = taught().due(0.01)
    assert due is not None
    assert 0.6 * BASE < due < BASE - 0.009


def test_a_request_does_not_wait_on_and_on_if_steps_end_too_early() -> None:
    step = taught()
    for one in range(4):
        assert step.due(0.06 * one + 0.01) is not None
        step.ended(0.06 * one + 0.06)
    assert step.due(0.25) is None
    step.sent(PROMPT, 0.25)
    assert step.due(0.26) is not None


def test_prompts_are_taken_when_a_step_has_surely_begun() -> None:
    step = taught()
    took = step.took(1.5 * BASE)
    assert took is not None
    assert 0.9 * BASE < took < BASE
    assert step.took(4 * BASE) is None


def test_a_better_request_goes_where_its_first_token_is_soonest() -> None:
    steps = Steps(lambda: 0.03)
    teach(steps.of(A), until=0.0)
    teach(steps.of(B), until=0.02)
    assert steps.soonest({A, B}, PROMPT) == {A}


def test_it_may_go_to_any_of_those_that_are_equal() -> None:
    steps = Steps(lambda: 0.03)
    teach(steps.of(A), until=0.0)
    teach(steps.of(B), until=0.002)
    assert steps.soonest({A, B}, PROMPT) == {A, B}


def test_an_endpoint_that_left_is_forgotten() -> None:
    steps = Steps(lambda: 0.03)
    teach(steps.of(A))
    before = steps.of(A)
    steps.keep_only({B})
    assert steps.of(A) is not before


events = st.tuples(
    st.sampled_from(["sent", "ended", "due"]), st.floats(0.0, 0.5), st.floats(0, 9e3)
)


@given(st.lists(events, max_size=80))
def test_a_request_waits_for_few_steps_at_most(course: list[tuple[str, float, float]]) -> None:
    step, now = taught(), 0.0
    for kind, seconds, tokens in course:
        now += seconds
        if kind == "sent":
            step.sent(tokens, now)
        elif kind == "ended":
            step.ended(now)
        else:
            due = step.due(now)
            assert due is None or due < now + LONGEST_STEP_SECONDS
    for _ in range(5):
        due = step.due(now)
        if due is None or due <= now:
            return
        now += 0.021
        step.ended(now)
    raise AssertionError("the request still waits")


def flow_with_steps() -> tuple[Flow, Sent]:
    """Return flow control of an endpoint whose step has just begun, and a batch request.

    The batch request waits for the end of the step, because chat is active.
    """
    flow = Flow(endpoints=1, classes=CLASSES)
    assert flow.flow is not None
    del flow.flow["maxInflight"]
    flow.publish()
    flow.now = 100.0
    teach(flow.control.room.steps.of(A), until=100.0 - BASE)
    flow.scrape(A, running=1)
    flow.now = 100.0 - BASE / 2
    chat = flow.send(objective="chat", tokens=PROMPT)
    flow.send(objective="chat", tokens=PROMPT)  # keeps the engine busy
    batch = flow.send(objective="batch", tokens=PROMPT)
    flow.now = 100.0
    chat.end()
    flow.run()
    return flow, batch


def test_a_request_of_a_lower_class_waits_until_shortly_before_the_step_ends() -> None:
    flow, batch = flow_with_steps()
    assert batch.waits
    assert 100.0 < flow.control.due_at < 100.0 + WITH_PROMPT + PER_TOKEN * PROMPT
    flow.now = flow.control.due_at
    flow.run()
    assert not batch.waits


def test_a_request_of_a_higher_class_goes_at_once() -> None:
    flow, batch = flow_with_steps()
    chat = flow.send(objective="chat", tokens=PROMPT)
    flow.run()
    assert not chat.waits
    assert batch.waits


def test_a_fixed_limit_makes_no_request_wait_for_a_step() -> None:
    flow, batch = flow_with_steps()
    assert flow.flow is not None
    flow.flow["maxInflight"] = 50
    flow.publish()
    flow.run()
    assert not batch.waits
    assert flow.control.due_at == inf
