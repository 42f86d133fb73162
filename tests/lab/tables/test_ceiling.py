"""The ceiling of the hit rate, by hand."""

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


def test_what_all_begin_with_is_missed_once() -> None:
    asked = workload(*(session(turn(f"{n}", BLOCK, opening=(SYSTEM,))) for n in range(4)))
    assert ceiling(asked, BLOCK) == 3 * 4 / (4 * 5)


def test_a_prompt_that_comes_again_is_found_but_for_its_last_block() -> None:
    asked = workload(*(session(turn("a", 4 * BLOCK)) for _ in range(2)))
    assert ceiling(asked, BLOCK) == 3 / 8


def test_answers_are_found_but_for_their_last_token() -> None:
    asked = workload(talk("t", [BLOCK, BLOCK], [2 * BLOCK, 1]))
    # Of the second prompt, four blocks: the message and a block of the answer.
    assert ceiling(asked, BLOCK) == 2 / 5


def test_adapters_have_caches_of_their_own() -> None:
    asked = workload(*(session(turn("a", 4 * BLOCK, adapter=name)) for name in ("x", "y")))
    assert ceiling(asked, BLOCK) == 0


def test_what_came_before_the_measurement_is_there() -> None:
    asked = workload(*(session(turn("a", 4 * BLOCK)) for _ in range(2)), warm_up=1)
    assert ceiling(asked, BLOCK) == 3 / 4


def test_of_nothing_it_is_nothing() -> None:
    assert ceiling(workload(), BLOCK) == 0


@pytest.mark.parametrize("name", ["kubeai-chat-800", "codegen", "heavy-tail"])
def test_it_is_what_one_engine_with_room_for_all_reaches(name: str) -> None:
    asked = named(name, Options(sessions=10))
    alone = replace(asked, concurrency=1, requests_per_second=None)
    run = simulate(scenario(alone, fast(kv_tokens=100_000_000)))
    assert summarize(run).hit_rate == pytest.approx(ceiling(asked, BLOCK), rel=1e-9)
