"""Shared system prompts: 150 of them, with five questions each."""

from __future__ import annotations

from collections import Counter

from extproc.lab.workloads.saas import saas


def test_has_750_requests_of_7200_tokens_with_1000_output_tokens() -> None:
    workload = saas()
    assert workload.requests == 750
    assert workload.prompt_tokens == 750 * 7_200
    assert workload.output_tokens == 750 * 1_000


def test_each_system_prompt_starts_five_prompts() -> None:
    prompts = [session.turns[0].prompt for session in saas().sessions]
    systems = Counter(system for system, _ in prompts)
    assert set(systems.values()) == {5}
    assert {(system.tokens, system.role) for system in systems} == {(6_000, "system")}


def test_questions_are_all_different() -> None:
    questions = {session.turns[0].prompt[1] for session in saas().sessions}
    assert len(questions) == 750


def test_the_seed_determines_times_and_order() -> None:
    assert saas(seed=1).sessions == saas(seed=1).sessions
    assert saas(seed=1).sessions != saas(seed=2).sessions
    assert saas().concurrency is None


def test_pace_scales_the_rate() -> None:
    assert (saas().requests_per_second, saas(pace=3.0).requests_per_second) == (0.5, 1.5)
