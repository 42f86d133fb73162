"""The ceiling of the hit rate, calculated by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from extproc.lab.measures.serving import summarize
from extproc.lab.simulation.simulation import simulate
from extproc.lab.tables.ceiling import ceiling
from extproc.lab.workloads import Options, named
from extproc.lab.workloads.workload import Segment
from tests.lab.simulation.builders import BLOCK, fast, scenario, session, talk, turn, workload

SYSTEM = Segment("system", 4 * BLOCK, "system")


def test_a_common_prefix_is_missed_once() -> None:
    asked = workload(*(session(turn(f"{n}", BLOCK, opening=(SYSTEM,))) for n in range(4)))
    assert ceiling(asked, BLOCK) == 3 * 4 / (4 * 5)


def test_a_repeated_prompt_is_found_except_its_last_block() -> None:
    asked = workload(*(session(turn("a", 4 * BLOCK)) for _ in range(2)))
    assert ceiling(asked, BLOCK) == 3 / 8


def test_responses_are_found_except_their_last_token() -> None:
    asked = workload(talk("t", [BLOCK, BLOCK], [2 * BLOCK, 1]))
    # Four blocks of the second prompt: the message and a block of the response.
    assert ceiling(asked, BLOCK) == 2 / 5


def test_adapters_have_separate_caches() -> None:
    asked = workload(*(session(turn("a", 4 * BLOCK, adapter=name)) for name in ("x", "y")))
    assert ceiling(asked, BLOCK) == 0


def test_warm_up_prompts_are_cached() -> None:
    asked = workload(*(session(turn("a", 4 * BLOCK)) for _ in range(2)), warm_up=1)
    assert ceiling(asked, BLOCK) == 3 / 4


def test_an_empty_workload_has_a_ceiling_of_zero() -> None:
    assert ceiling(workload(), BLOCK) == 0


@pytest.mark.parametrize("name", ["kubeai-chat-800", "codegen", "heavy-tail"])
def test_one_unlimited_engine_reaches_the_ceiling(name: str) -> None:
    asked = named(name, Options(sessions=10))
    alone = replace(asked, concurrency=1, requests_per_second=None)
    run = simulate(scenario(alone, fast(kv_tokens=100_000_000)))
    assert summarize(run).hit_rate == pytest.approx(ceiling(asked, BLOCK), rel=1e-9)
