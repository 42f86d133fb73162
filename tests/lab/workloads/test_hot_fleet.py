"""A hot prefix on large fleets with cold caches."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from statistics import fmean

import pytest

from extproc.lab.workloads.hot_fleet import REQUESTS, hot_fleet, hot_fleet_chat
from extproc.lab.workloads.workload import Turn, Workload


def turns(workload: Workload) -> list[Turn]:
    return [turn for session in workload.sessions for turn in session.turns]


@pytest.mark.parametrize(
    ("kind", "engines"), [(hot_fleet, 64), (hot_fleet, 200), (hot_fleet_chat, 64)]
)
def test_all_prompts_begin_with_one_prefix_of_40000_tokens(
    kind: Callable[[int], Workload], engines: int
) -> None:
    assert {(one.prompt[0].name, one.prompt[0].tokens) for one in turns(kind(engines))} == {
        ("hot-fleet/system", 40_000)
    }


@pytest.mark.parametrize("engines", REQUESTS)
def test_requests_are_short_questions_in_proportion_to_the_fleet(engines: int) -> None:
    workload = hot_fleet(engines)
    assert workload.replicas == engines
    assert workload.requests_per_second == pytest.approx(2.4 * engines)
    assert workload.requests == len(workload.sessions) == REQUESTS[engines]
    assert 90 <= fmean(turn.prompt_tokens - 40_000 for turn in turns(workload)) <= 110
    assert 90 <= fmean(turn.output.tokens for turn in turns(workload)) <= 110


class TestChat:
    def test_conversations_have_3_to_9_turns(self) -> None:
        sizes = [len(session.turns) for session in hot_fleet_chat(64).sessions]
        assert (min(sizes), max(sizes)) == (3, 9)

    def test_each_turn_sends_the_whole_conversation(self) -> None:
        for session in hot_fleet_chat(64).sessions:
            for before, after in pairwise(session.turns):
                assert after.prompt[:-1] == (*before.prompt, before.output)

    def test_requests_come_as_often_as_without_conversations(self) -> None:
        chat, single = hot_fleet_chat(64), hot_fleet(64)
        assert chat.requests_per_second
        assert single.requests_per_second
        mean_turns = chat.requests / len(chat.sessions)
        rate = chat.requests_per_second * mean_turns
        assert rate == pytest.approx(single.requests_per_second, rel=0.05)

    def test_users_think_for_5_seconds_on_average(self) -> None:
        pauses = [
            turn.think_seconds for session in hot_fleet_chat(64).sessions for turn in session.turns
        ]
        assert 4 <= fmean(pause for pause in pauses if pause) <= 6


def test_pace_scales_the_rate() -> None:
    for make in (hot_fleet, hot_fleet_chat):
        slow, fast = make(64), make(64, pace=2.0)
        assert slow.requests_per_second
        assert fast.requests_per_second
        assert fast.requests_per_second == 2 * slow.requests_per_second
        assert fast.sessions == slow.sessions


def test_the_seed_determines_the_workload() -> None:
    assert hot_fleet(64, seed=1) == hot_fleet(64, seed=1) != hot_fleet(64, seed=2)
    assert hot_fleet_chat(64, seed=1) == hot_fleet_chat(64, seed=1) != hot_fleet_chat(64, seed=2)
