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


def run(*those: Crowd, gate: bool = False, flow: bool = True, **more: object) -> Run:
    """Simulate ten seconds on two engines."""
    workload = crowds(those, 10.0, ENGINE)
    spec = FlowControlSpec.model_validate({"maxWaitSeconds": 290.0, **more}) if flow else None
    balancing = LoadBalancingSpec(strategy="PrefixCache")
    usual = Scenario.of(workload, profile.named(ENGINE), balancing)
    routing = replace(usual.routing, flow_control=spec, saturation_gate=gate)
    return simulate(replace(usual, routing=routing, replicas=2))


@pytest.mark.parametrize("gate", [False, True])
def test_every_request_is_served_in_an_overload(gate: bool) -> None:
    assert run(Crowd("all", 40.0), gate=gate).succeeded.all()


def test_without_an_overload_nothing_changes() -> None:
    without, within = run(Crowd("few", 2.0), flow=False), run(Crowd("few", 2.0))
    assert np.array_equal(without.first, within.first)


def test_requests_that_wait_too_long_fail() -> None:
    found = run(Crowd("all", 40.0), maxWaitSeconds=1.0, maxInflight=2)
    assert 0 < found.succeeded.sum() < len(found.succeeded)
