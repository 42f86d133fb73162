"""Concurrent simulations: the same runs as one after another, from other processes."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Sequence
from dataclasses import fields
from multiprocessing.process import BaseProcess
from time import monotonic, sleep

import numpy as np
import pytest

from extproc.lab.measures.run import Run
from extproc.lab.simulation.pool import simulate_all
from extproc.lab.simulation.sidecars import Routing
from extproc.lab.simulation.simulation import Scenario, simulate
from extproc.lab.workloads import Options, named
from tests.extent import PATIENCE
from tests.lab.simulation.builders import balancing, fast, scenario, session, turn, workload


def fleets(strategies: Sequence[str], sessions: int = 20) -> list[Scenario]:
    # With adapters there are sets, whose order differs between processes.
    asked = named("lora-4", Options(sessions=sessions))
    profile = fast(max_loras=2, kv_tokens=3_000)
    return [
        scenario(asked, profile, strategy, replicas=4, sidecars=2, seed=3)
        for strategy in strategies
    ]


def assert_equal(first: Run, second: Run) -> None:
    for one in fields(Run):
        np.testing.assert_equal(getattr(first, one.name), getattr(second, one.name))


def test_runs_do_not_depend_on_processes_and_keep_their_order() -> None:
    asked = fleets(["LoraQueue", "PrefixHash"])
    reports: list[tuple[int, int]] = []
    runs = simulate_all(asked, lambda *one: reports.append(one))
    assert [run.strategy for run in runs] == ["LoraQueue", "PrefixHash"]
    for run, one in zip(runs, asked, strict=True):
        assert_equal(run, simulate(one))
    assert {number for number, _ in reports} <= {0, 1}
    assert sum(more for _, more in reports) <= 40


def test_errors_in_a_simulation_are_raised_unchanged() -> None:
    routing = Routing(balancing("Random"), addresses=["192.0.2.1:8000"])
    wrong = scenario(workload(session(turn("a"))), routing=routing, replicas=2)
    with pytest.raises(ValueError, match="zip"):
        simulate_all([wrong])


def test_an_interrupt_ends_the_processes() -> None:
    at_work: list[BaseProcess] = []

    def interrupt(number: int, more: int) -> None:
        at_work.extend(multiprocessing.active_children())
        raise KeyboardInterrupt

    long = scenario(named("kubeai-threads-300", Options(sessions=300)), fast(), replicas=8)
    with pytest.raises(KeyboardInterrupt):
        simulate_all([long], interrupt)
    assert [_exit_code(process) for process in at_work] == [-signal.SIGTERM]


def _exit_code(process: BaseProcess) -> int | None:
    # The pool's own thread may notice the end, and report it a moment later.
    process.join()
    deadline = monotonic() + PATIENCE
    while process.exitcode is None and monotonic() < deadline:
        sleep(0.01)
    return process.exitcode
