"""Scenes with shared prefixes: each can be simulated, and changes the fleet as its name says."""

from __future__ import annotations

from collections import Counter
from functools import cache

import pytest

from extproc.lab.simulation.events import Join, absent
from extproc.lab.simulation.scenario import Scenario
from extproc.lab.tables.contenders import OURS
from extproc.lab.tables.scenes import SCENES, SHARED_PREFIXES, Scene
from extproc.lab.tables.trials import Trial, scenario


@cache
def of(scene: str) -> Scenario:
    return scenario(Trial(scene, OURS))


def kinds(scene: str) -> Counter[str]:
    """Return the number of engines of each profile."""
    found = of(scene)
    return Counter(found.others.get(n, found.profile).name for n in range(found.replicas))


@pytest.mark.parametrize("scene", SHARED_PREFIXES)
def test_each_scene_has_a_scenario(scene: str) -> None:
    found = of(scene)
    assert found.workload.requests > 0
    assert max(found.others, default=0) < found.replicas
    assert all(event.number < found.replicas for event in found.events)


def test_large_fleets_have_one_seed_and_others_three() -> None:
    for scene in SHARED_PREFIXES:
        expected = 1 if of(scene).replicas == 200 else 3
        assert len(SCENES[scene].seeds) == expected


def test_kinds_of_engines_take_turns() -> None:
    h100, a100, l40s = (f"Llama 3.1 8B on an {name}" for name in ("H100", "A100", "L40S"))
    assert kinds("agents-20") == {h100: 8}
    assert kinds("agents-20 on two kinds") == {h100: 4, a100: 4}
    assert kinds("agents-20 on three kinds") == {h100: 3, a100: 3, l40s: 2}


def test_changes_apply_to_all_kinds() -> None:
    mixed = Scene(
        "agents-20", kinds=SCENES["agents-20 on two kinds"].kinds, changes={"max_num_seqs": 9}
    )
    engine, others = mixed.engines("h100-llama-3.1-8b", 4)
    assert {one.max_num_seqs for one in (engine, *others.values())} == {9}


def test_engines_join_during_the_hot_load() -> None:
    found = of("hot-fleet-64, from 24 engines")
    assert absent(found.events) == frozenset(range(24, 64))
    assert all(isinstance(event, Join) for event in found.events)


def test_chunked_prefill_can_be_off_and_decoding_first() -> None:
    assert not of("agents-20 without chunks").profile.chunked_prefill
    assert of("agents-20, decoding first").profile.max_prompt_tokens_with_decoding == 512
