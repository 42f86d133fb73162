"""Chats in bursts, and ten requests at one instant."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from statistics import fmean

import pytest

from extproc.lab.workloads.bursts import chat_bursts, instants
from extproc.lab.workloads.workload import Workload


class TestChats:
    def test_arrive_with_a_coefficient_of_variation_of_3(self) -> None:
        assert chat_bursts().burstiness == pytest.approx(1 / 9)

    def test_have_3_turns_on_average_and_20_system_prompts(self) -> None:
        workload = chat_bursts()
        sizes = [len(session.turns) for session in workload.sessions]
        assert (len(sizes), min(sizes), max(sizes)) == (1_200, 1, 8)
        assert 2.7 <= fmean(sizes) <= 3.6
        systems = {session.turns[0].prompt[0] for session in workload.sessions}
        assert len(systems) == 20
        assert all(300 <= system.tokens <= 2_000 for system in systems)

    def test_each_turn_sends_the_whole_chat(self) -> None:
        for session in chat_bursts().sessions:
            for before, after in pairwise(session.turns):
                assert after.prompt[:-1] == (*before.prompt, before.output)


class TestInstants:
    def test_ten_requests_start_together_behind_one_context(self) -> None:
        workload = instants()
        assert (workload.at_once, workload.requests) == (10, 2_000)
        for first in range(0, 2_000, 10):
            ten = workload.sessions[first : first + 10]
            assert len({session.turns[0].prompt[0] for session in ten}) == 1

    def test_half_of_the_contexts_are_new(self) -> None:
        firsts = [session.turns[0].prompt[0].name for session in instants().sessions[::10]]
        known = sum("known" in name for name in firsts)
        assert 70 <= known <= 130
        assert len({name for name in firsts if "known" in name}) <= 20


@pytest.mark.parametrize("make", [chat_bursts, instants])
def test_pace_scales_the_rate(make: Callable[..., Workload]) -> None:
    usual = make().requests_per_second
    assert usual is not None
    assert make(pace=2.0).requests_per_second == 2 * usual


@pytest.mark.parametrize("make", [chat_bursts, instants])
def test_the_seed_determines_the_workload(make: Callable[..., Workload]) -> None:
    assert make(seed=1) == make(seed=1) != make(seed=2)
