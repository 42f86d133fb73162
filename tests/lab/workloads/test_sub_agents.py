"""Coding agents whose sessions fork."""

from __future__ import annotations

from statistics import fmean

import pytest

from extproc.lab.workloads.sub_agents import sub_agents
from extproc.lab.workloads.workload import Fork, Session, Workload


@pytest.fixture(scope="module", params=range(2))
def workload(request: pytest.FixtureRequest) -> Workload:
    return sub_agents(seed=request.param)


def forks(workload: Workload) -> list[tuple[Session, Fork]]:
    return [(session, fork) for session in workload.sessions for fork in session.forks]


def test_30_sessions_run_12_at_a_time(workload: Workload) -> None:
    assert (len(workload.sessions), workload.concurrency) == (30, 12)


def test_a_sub_agent_starts_with_the_whole_context_of_its_parent(workload: Workload) -> None:
    for parent, fork in forks(workload):
        origin = parent.turns[fork.after]
        begin = (*origin.prompt, origin.output)
        assert all(turn.prompt[: len(begin)] == begin for turn in fork.session.turns)


def test_the_parent_waits_and_has_another_turn(workload: Workload) -> None:
    for parent, fork in forks(workload):
        assert fork.is_awaited
        assert fork.after < len(parent.turns) - 1


def test_one_turn_in_16_starts_2_sub_agents_on_average(workload: Workload) -> None:
    starts = {(id(parent), fork.after) for parent, fork in forks(workload)}
    turns = sum(len(session.turns) for session in workload.sessions)
    assert 0.04 <= len(starts) / turns <= 0.08
    assert 2 <= len(forks(workload)) / len(starts) <= 3


def test_sub_agents_have_up_to_10_turns_within_the_longest_context(workload: Workload) -> None:
    sizes = [len(fork.session.turns) for _, fork in forks(workload)]
    assert (min(sizes) >= 1, max(sizes) <= 10, 5 <= fmean(sizes) <= 7.5) == (True, True, True)
    longest = max(turn.prompt_tokens + turn.output.tokens for turn in workload.turns)
    assert longest <= 150_000 + 4_500


def test_requests_of_forks_count(workload: Workload) -> None:
    alone = sum(len(session.turns) for session in workload.sessions)
    of_forks = sum(len(fork.session.turns) for _, fork in forks(workload))
    assert workload.requests == alone + of_forks


def test_the_seed_determines_the_workload() -> None:
    assert sub_agents(seed=1) == sub_agents(seed=1) != sub_agents(seed=2)
