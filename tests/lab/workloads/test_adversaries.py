"""Adversarial workloads: each has the property that makes it bad for some rule."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest

from extproc.lab.engine.profile import L4_LLAMA_3_1_8B_FP8
from extproc.lab.workloads.adversaries import (
    REQUESTS,
    all_distinct,
    heavy_tail,
    hot_prefix,
    one_prefix,
)
from extproc.lab.workloads.workload import Workload

ALL = [one_prefix, all_distinct, hot_prefix, heavy_tail]
Make = Callable[..., Workload]

each = pytest.mark.parametrize("make", ALL)


@each
def test_have_thousands_of_requests_at_a_rate(make: Make) -> None:
    workload = make()
    assert REQUESTS <= workload.requests < REQUESTS + 10
    assert workload.requests_per_second is not None
    assert not workload.is_closed
    assert workload.concurrency is None


@each
def test_the_pace_changes_the_arrivals(make: Make) -> None:
    usual, fast = make().requests_per_second, make(pace=3.0).requests_per_second
    assert usual is not None
    assert fast == 3 * usual


@each
def test_the_seed_determines_the_workload(make: Make) -> None:
    assert make(seed=1).sessions == make(seed=1).sessions != make(seed=2).sessions


@each
def test_an_l4_can_serve_every_request(make: Make) -> None:
    longest = max(
        turn.prompt_tokens + turn.output.tokens
        for session in make().sessions
        for turn in session.turns
    )
    assert longest < L4_LLAMA_3_1_8B_FP8.kv_tokens


def openings(workload: Workload) -> Counter[str]:
    """Return how often each text comes first."""
    return Counter(session.turns[0].prompt[0].name for session in workload.sessions)


def test_one_prefix_prompts_share_only_the_prefix() -> None:
    workload = one_prefix()
    prompts = [session.turns[0].prompt for session in workload.sessions]
    assert {prompt[0] for prompt in prompts} == {("system", 2_000, "system")}
    assert len({prompt[1].name for prompt in prompts}) == REQUESTS
    assert np.mean([prompt[1].tokens for prompt in prompts]) == pytest.approx(60, rel=0.1)


def test_distinct_prompts_share_nothing() -> None:
    assert set(openings(all_distinct()).values()) == {1}


def test_half_of_hot_prefix_requests_share_one_prefix() -> None:
    workload = hot_prefix()
    counts = openings(workload)
    (name, hot), (_, next_hottest) = counts.most_common(2)
    assert name == "system/hot"
    assert hot == pytest.approx(REQUESTS / 2, rel=0.1)
    assert len(counts) == 101
    assert next_hottest < REQUESTS / 50


def test_few_heavy_tail_prompts_hold_much_of_the_work() -> None:
    workload = heavy_tail()
    messages = [turn.prompt[-1].tokens for session in workload.sessions for turn in session.turns]
    longest = sorted(messages)[-len(messages) // 20 :]
    assert sum(longest) > 0.35 * sum(messages)
    assert np.median(messages) < 0.3 * np.mean(messages)


def test_heavy_tail_conversations_have_several_turns() -> None:
    sessions = heavy_tail().sessions
    assert max(len(session.turns) for session in sessions) == 8
    assert np.mean([len(session.turns) for session in sessions]) > 2.5
    for session in sessions:
        for before, after in zip(session.turns, session.turns[1:], strict=False):
            assert after.prompt[: len(before.prompt)] == before.prompt
            assert after.think_seconds > 0
