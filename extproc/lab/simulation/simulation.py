"""Runs a workload against a simulated fleet: client, sidecars and engines on one timeline."""

from __future__ import annotations

from collections.abc import Callable

from extproc.lab.measures.run import Run
from extproc.lab.simulation.fleet import SimulatedFleet
from extproc.lab.simulation.phase import Phase
from extproc.lab.simulation.scenario import Scenario

__all__ = ["Scenario", "simulate"]


def simulate(scenario: Scenario, progress: Callable[[int], None] = lambda more: None) -> Run:
    """Run a scenario from the first request to the last token. The result depends only on the seed.

    `progress` is called with the number of newly answered requests.
    """
    fleet = SimulatedFleet(scenario)
    before = scenario.workload.before
    if before.sessions:
        Phase(fleet, before, scenario, 0).run(progress)
    phase = Phase(fleet, scenario.workload.measured, scenario, before.requests)
    phase.run(progress, scenario.events)
    return phase.result()
