"""Coding agents: long sessions of short steps behind one system prompt."""

from __future__ import annotations

from itertools import pairwise
from statistics import fmean

import pytest

from extproc.lab.workloads.agents import agents
from extproc.lab.workloads.workload import Turn, Workload


@pytest.fixture(scope="module", params=range(3))
def workload(request: pytest.FixtureRequest) -> Workload:
    return agents(40, seed=request.param)


def turns(workload: Workload) -> list[Turn]:
    return [turn for session in workload.sessions for turn in session.turns]


def follows(after: Turn, before: Turn) -> bool:
    """Return True if a turn sends the whole conversation before it."""
    return after.prompt[:-1] == (*before.prompt, before.output)


def test_all_sessions_share_the_system_prompt_and_nothing_else(workload: Workload) -> None:
    assert {(one.prompt[0].tokens, one.prompt[0].role) for one in turns(workload)} == {
        (12_000, "system")
    }
    firsts = [session.turns[0].prompt[1].name for session in workload.sessions]
    assert len(set(firsts)) == len(firsts)


def test_sessions_have_20_to_60_turns_and_their_compactions(workload: Workload) -> None:
    sizes = [len(session.turns) for session in workload.sessions]
    assert (min(sizes) >= 20, max(sizes) <= 65) == (True, True)
    assert 35 <= fmean(sizes) <= 45


def test_contexts_grow_up_to_their_limit(workload: Workload) -> None:
    largest = max(turn.prompt_tokens + turn.output.tokens for turn in turns(workload))
    # The request for a summary is a little longer.
    assert 140_000 <= largest <= 150_000 + 4_500


def test_a_mean_step_has_400_output_tokens_and_100_to_200_times_as_many_in_its_prompt(
    workload: Workload,
) -> None:
    assert 350 <= fmean(turn.output.tokens for turn in turns(workload)) <= 470
    assert 100 <= workload.prompt_tokens / workload.output_tokens <= 200


def test_most_turns_add_1000_to_4000_tokens(workload: Workload) -> None:
    added = [
        after.prompt_tokens - before.prompt_tokens
        for session in workload.sessions
        for before, after in pairwise(session.turns)
        if follows(after, before)
    ]
    assert 2_200 <= fmean(added) <= 2_900


def test_a_compaction_leaves_the_system_prompt_and_a_summary(workload: Workload) -> None:
    rewritten = [
        (before, after)
        for session in workload.sessions
        for before, after in pairwise(session.turns)
        if not follows(after, before)
    ]
    assert rewritten
    for before, after in rewritten:
        assert before.prompt[-1].name.endswith("/compact")
        system, summary, _ = after.prompt
        assert (system, summary.name) == (before.prompt[0], before.output.name)
        assert before.output.tokens == summary.tokens


def test_tools_run_2_to_20_seconds_between_turns(workload: Workload) -> None:
    pauses = [turn.think_seconds for session in workload.sessions for turn in session.turns[1:]]
    assert all(session.turns[0].think_seconds == 0 for session in workload.sessions)
    assert (min(pauses) >= 2, max(pauses) <= 20, 6 <= fmean(pauses) <= 9) == (True, True, True)


def test_one_session_a_second_starts_up_to_a_number_at_a_time(workload: Workload) -> None:
    assert [session.start for session in workload.sessions[:3]] == [0, 1, 2]
    assert (workload.concurrency, agents(20).concurrency) == (40, 20)


def test_pace_only_shortens_the_pauses() -> None:
    slow, fast = agents(20), agents(20, pace=2.0)
    assert fast.sessions[9].start == slow.sessions[9].start / 2
    for before, after in zip(turns(slow), turns(fast), strict=True):
        assert after.think_seconds == pytest.approx(before.think_seconds / 2)
        assert after.prompt == before.prompt


def test_the_seed_determines_the_workload() -> None:
    assert agents(20, seed=1) == agents(20, seed=1) != agents(20, seed=2)
