"""Agents that call tools in short steps."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from statistics import fmean

import pytest

from extproc.lab.workloads.tool_agents import tool_agents
from extproc.lab.workloads.workload import Workload


@pytest.fixture(scope="module", params=range(2))
def workload(request: pytest.FixtureRequest) -> Workload:
    return tool_agents(seed=request.param)


def test_400_sessions_have_5_to_15_steps(workload: Workload) -> None:
    sizes = [len(session.turns) for session in workload.sessions]
    assert (len(sizes), min(sizes), max(sizes)) == (400, 5, 15)


def test_three_of_eight_kinds_of_agents_have_most_sessions(workload: Workload) -> None:
    kinds = Counter(session.turns[0].prompt[0] for session in workload.sessions)
    assert len(kinds) == 8
    assert all(1_500 <= kind.tokens <= 4_000 for kind in kinds)
    assert sum(times for _, times in kinds.most_common(3)) > 200


def test_a_step_adds_a_short_result_and_a_call(workload: Workload) -> None:
    for session in workload.sessions:
        for before, after in pairwise(session.turns):
            assert after.prompt[:-1] == (*before.prompt, before.output)
    turns = [turn for session in workload.sessions for turn in session.turns]
    assert 220 <= fmean(turn.prompt[-1].tokens for turn in turns) <= 280
    assert 70 <= fmean(turn.output.tokens for turn in turns) <= 90


def test_tools_take_less_than_a_second_on_average(workload: Workload) -> None:
    pauses = [turn.think_seconds for session in workload.sessions for turn in session.turns[1:]]
    assert 0.7 <= fmean(pauses) <= 1.0


def test_pace_scales_the_rate() -> None:
    usual = tool_agents().requests_per_second
    assert usual is not None
    assert tool_agents(pace=2.0).requests_per_second == 2 * usual


def test_the_seed_determines_the_workload() -> None:
    assert tool_agents(seed=1) == tool_agents(seed=1) != tool_agents(seed=2)
