"""Coding agents: long contexts, shared by few sessions, within a model's limit."""

from __future__ import annotations

from itertools import pairwise

import pytest

from extproc.lab.workloads.codegen import codegen
from extproc.lab.workloads.workload import Turn, Workload


@pytest.fixture(scope="module", params=range(3))
def workload(request: pytest.FixtureRequest) -> Workload:
    return codegen(seed=request.param)


def turns(workload: Workload) -> list[Turn]:
    return [turn for session in workload.sessions for turn in session.turns]


def test_sessions_share_a_handful_of_system_prompts(workload: Workload) -> None:
    systems = {session.turns[0].prompt[0] for session in workload.sessions}
    assert len(workload.sessions) == 160
    assert 8 <= len(systems) <= 12
    assert all(3_000 <= system.tokens <= 100_000 for system in systems)


def test_half_of_the_system_prompts_are_below_the_geometric_mean(
    workload: Workload,
) -> None:
    systems = {turn.prompt[0] for turn in turns(workload)}
    shorter = sum(system.tokens < 17_321 for system in systems)
    assert abs(shorter - len(systems) / 2) <= 1


def test_each_turn_sends_the_whole_conversation(workload: Workload) -> None:
    for session in workload.sessions:
        for before, after in pairwise(session.turns):
            assert after.prompt[:-1] == (*before.prompt, before.output)


def test_sessions_have_at_most_20_turns(workload: Workload) -> None:
    sizes = [len(session.turns) for session in workload.sessions]
    assert (min(sizes) >= 1, max(sizes)) == (True, 20)


def test_contexts_stay_within_the_limit(workload: Workload) -> None:
    assert max(turn.prompt_tokens + turn.output.tokens for turn in turns(workload)) <= 120_000


def test_users_think_between_turns_but_not_before_the_first(workload: Workload) -> None:
    for session in workload.sessions:
        assert session.turns[0].think_seconds == 0
        assert all(turn.think_seconds > 0 for turn in session.turns[1:])


def test_one_session_a_second_starts_up_to_40_at_a_time(workload: Workload) -> None:
    assert [session.start for session in workload.sessions[:3]] == [0, 1, 2]
    assert workload.concurrency == 40


def test_pace_only_shortens_the_pauses() -> None:
    slow, fast = codegen(), codegen(pace=2.0)
    assert fast.sessions[9].start == slow.sessions[9].start / 2
    for before, after in zip(turns(slow), turns(fast), strict=True):
        assert after.think_seconds == pytest.approx(before.think_seconds / 2)
        assert after.prompt == before.prompt


def test_the_seed_determines_the_workload() -> None:
    assert codegen(seed=1) == codegen(seed=1)
    assert codegen(seed=1) != codegen(seed=2)
