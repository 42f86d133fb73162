"""Fleets of different engines: each works at its own speed, with its own memory."""

from __future__ import annotations

import pytest

from extproc.lab.engine.profile import named
from extproc.lab.simulation.engines import Engines
from extproc.lab.simulation.events import Join, Leave
from extproc.lab.simulation.simulation import simulate
from extproc.lab.simulation.timeline import Timeline
from tests.lab.simulation.builders import engine, scenario, session, turn, workload

QUICK = engine(name="quick", step_base_seconds=0.25, kv_tokens=32)


def test_each_engine_has_its_own_speed() -> None:
    asked = workload(session(turn("a")), session(turn("b")))
    run = simulate(scenario(asked, replicas=2, others={1: QUICK}))
    assert sorted(run.last.tolist()) == [0.625, 2.125]


def test_each_engine_has_its_own_memory() -> None:
    asked = workload(session(turn("a", 100)))
    assert simulate(scenario(asked)).succeeded.all()
    assert not simulate(scenario(asked, others={0: QUICK})).succeeded.any()


def test_an_engine_returns_with_its_own_profile() -> None:
    asked = workload(session(turn("a"), start=5.0))
    events = [Leave(1.0, 0), Join(2.0, 0)]
    run = simulate(scenario(asked, others={0: QUICK}, events=events))
    assert run.last[0] - run.sent[0] == 0.625


def test_a_slow_engine_may_have_its_own_profile() -> None:
    engines = Engines(Timeline(), engine(), 2, {1: 3.0}, {1: QUICK})
    assert [one.profile.step_base_seconds for one in engines.replicas] == [1.0, 0.75]


def test_blocks_of_different_sizes_are_refused() -> None:
    with pytest.raises(ValueError, match=r"blocks of one size, not of \[16, 32\]"):
        scenario(workload(), others={1: engine(block_size=32)})


def test_derived_profiles_are_slower_than_the_h100_in_the_order_of_their_data_sheets() -> None:
    h100, a100, l40s = (named(f"{name}-llama-3.1-8b") for name in ("h100", "a100", "l40s"))
    steps = [one.step_base_seconds for one in (h100, a100, l40s)]
    assert steps == sorted(steps)
    assert h100.prefill_tokens_per_second > l40s.prefill_tokens_per_second
    assert l40s.prefill_tokens_per_second > a100.prefill_tokens_per_second
    assert h100.kv_tokens == a100.kv_tokens > l40s.kv_tokens
