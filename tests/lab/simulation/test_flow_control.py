"""Simulated sidecars hold requests as the product does."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from extproc.core.schema import FlowControlSpec, LoadBalancingSpec
from extproc.lab.engine import profile
from extproc.lab.measures.run import Run
from extproc.lab.simulation.simulation import Scenario, simulate
from extproc.lab.workloads.tenants import Crowd, crowds

ENGINE = "l4-llama-3.1-8b-fp8"


def run(
    *those: Crowd, gate: bool = False, flow: bool = True, delay: float = 0.0, **more: object
) -> Run:
    """Simulate ten seconds on two engines."""
    workload = crowds(those, 10.0, ENGINE)
    spec = FlowControlSpec.model_validate({"maxWaitSeconds": 290.0, **more}) if flow else None
    balancing = LoadBalancingSpec(strategy="PrefixCache")
    usual = Scenario.of(workload, profile.named(ENGINE), balancing)
    routing = replace(usual.routing, flow_control=spec, saturation_gate=gate)
    return simulate(replace(usual, routing=routing, replicas=2, delay=delay))


@pytest.mark.parametrize("gate", [False, True])
def test_every_request_is_served_in_an_overload(gate: bool) -> None:
    assert run(Crowd("all", 40.0), gate=gate).succeeded.all()


def test_without_an_overload_nothing_changes() -> None:
    without, within = run(Crowd("few", 2.0), flow=False), run(Crowd("few", 2.0))
    assert np.array_equal(without.first, within.first)


def test_requests_and_the_news_of_their_ends_may_take_some_time() -> None:
    at_once, late = run(Crowd("few", 2.0)), run(Crowd("few", 2.0), delay=0.2)
    later = late.first - at_once.first
    assert 0.05 < later.mean() < 0.15


def test_requests_that_wait_too_long_fail() -> None:
    found = run(Crowd("all", 40.0), maxWaitSeconds=1.0, maxInflight=2)
    assert 0 < found.succeeded.sum() < len(found.succeeded)


def test_short_responses_do_not_lower_the_throughput() -> None:
    """Many of them end with each step, so as many requests wait in an engine with room."""
    crowd = Crowd("all", 60.0, prompt_tokens=200, output_tokens=20)
    without, within = run(crowd, flow=False), run(crowd)
    assert within.seconds < 1.03 * without.seconds


@pytest.mark.parametrize("classes", [(), ({"name": "chat", "priority": 1},)])
def test_an_overload_of_others_hardly_delays_a_quiet_tenant_or_a_higher_class(
    classes: tuple[object, ...],
) -> None:
    quiet, loud = Crowd("quiet", 1.0, objective="chat"), Crowd("loud", 40.0)
    alone, both = run(quiet), run(quiet, loud, classes=classes)
    # The quiet requests are those whose prompts the other run has, too.
    mine = np.isin(both.prompt_tokens, alone.prompt_tokens) & np.isin(both.wanted, alone.wanted)
    assert mine.sum() == len(alone.first)
    # Before the first one, the others had the engines for themselves.
    assert (both.first - both.wanted)[mine][1:].max() < 1.0
    assert (both.first - both.wanted)[~mine].max() > 10.0
