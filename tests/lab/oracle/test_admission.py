"""The admission that knows the engines sends each prompt to the step that computes it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from extproc.core.schema import FlowControlSpec, LoadBalancingSpec
from extproc.lab.engine import profile
from extproc.lab.engine.scheduler import Scheduler
from extproc.lab.engine.step import Step
from extproc.lab.measures.run import Run
from extproc.lab.simulation.simulation import Scenario, simulate
from extproc.lab.workloads.tenants import Crowd, crowds

ENGINE = "l4-llama-3.1-8b-fp8"


def run(*those: Crowd) -> Run:
    workload = crowds(those, 10.0, ENGINE)
    balancing = LoadBalancingSpec(strategy="LeastLoad")
    usual = Scenario.of(workload, profile.named(ENGINE), balancing)
    classes = [{"name": "chat", "priority": 1}]
    spec = FlowControlSpec.model_validate({"classes": classes})
    routing = replace(usual.routing, flow_control=spec, step_admission=True)
    return simulate(replace(usual, routing=routing, replicas=2))


def test_no_prompt_waits_in_an_engine_and_no_step_computes_two(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waited: list[int] = []
    plan = Scheduler.plan

    def planned(scheduler: Scheduler) -> Step:
        waited.append(len(scheduler.waiting))
        return plan(scheduler)

    monkeypatch.setattr(Scheduler, "plan", planned)
    assert run(Crowd("loud", 30.0)).succeeded.all()
    assert max(waited) == 1


def test_a_quiet_tenant_and_a_higher_class_go_first() -> None:
    for objective in ("", "chat"):
        found = run(Crowd("quiet", 1.0, objective=objective), Crowd("loud", 40.0))
        times = np.sort(found.first - found.wanted)
        assert times[:8].max() < 0.5
        assert times[-1] > 10.0
