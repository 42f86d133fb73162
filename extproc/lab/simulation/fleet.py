"""A simulated fleet: sidecars in front of engines."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random
from typing import NamedTuple

from extproc.core.fleet.ledger import Lease
from extproc.core.flow_control.flow_control import FlowControl
from extproc.core.request.refusals import Refusal
from extproc.core.routing.decision import Decision
from extproc.lab import oracle
from extproc.lab.engine.replica import SimRequest
from extproc.lab.oracle.truth import Truth
from extproc.lab.simulation.block_ids import BlockIds
from extproc.lab.simulation.engines import Engines
from extproc.lab.simulation.events import Event, Leave, absent
from extproc.lab.simulation.prompts import Prompts
from extproc.lab.simulation.scenario import Scenario
from extproc.lab.simulation.sharing import SharedState
from extproc.lab.simulation.sidecars import Sidecar
from extproc.lab.simulation.timeline import Action, Timeline
from extproc.lab.workloads.workload import Turn


class Placement(NamedTuple):
    """A request on an engine."""

    engine: int
    lease: Lease


Placed = Callable[[Placement | str], None]
"""Receives where a request went, or why it was refused."""


class SimulatedFleet:
    """Sidecars, engines and the requests on them."""

    def __init__(self, scenario: Scenario) -> None:
        self.timeline = Timeline()
        self.engines = Engines(
            self.timeline, scenario.profile, scenario.replicas, scenario.slow, scenario.others
        )
        self.engines.warm_adapters(list(scenario.routing.adapters))
        seed, yet_to_come = scenario.seed, absent(scenario.events)
        self._present = set(range(scenario.replicas)) - yet_to_come
        prompts = Prompts(scenario.routing.shown)
        self._ids = BlockIds(scenario.profile.block_size)
        self._truth: Truth | None = None
        rule = scenario.routing.published_rule
        if oracle.rule_of(rule):
            self._truth = Truth(
                self.timeline,
                self.engines,
                scenario.workload,
                self._ids,
                knows_steps=oracle.knows_steps(rule),
            )
        self._sidecars = [
            Sidecar(
                self.timeline,
                self.engines.replicas,
                scenario.routing,
                f"{seed} {number}",
                yet_to_come,
                prompts,
                self._truth,
                self.engines,
            )
            for number in range(scenario.sidecars)
        ]
        if scenario.share is not None:
            shared = SharedState(self.timeline, scenario.share)
            for sidecar in self._sidecars:
                shared.join(sidecar.fleet)
                if isinstance(sidecar.flow, FlowControl):
                    sidecar.flow.room.peers = lambda: scenario.sidecars - 1
        self._api = scenario.workload.api
        endpoints = scenario.routing.endpoints(scenario.replicas)
        self._numbers = {address: number for number, address in enumerate(endpoints)}
        self._chance = Random(f"sidecar {seed}")
        self._delay = scenario.delay
        self._delays = Random(f"delay {seed}")

    def happen(self, event: Event) -> None:
        """Let an engine join or leave, and report it to all sidecars."""
        if isinstance(event, Leave):
            self._present.discard(event.number)
            self.engines.replace(event.number)
        else:
            self._present.add(event.number)
        for sidecar in self._sidecars:
            sidecar.follow(self._present)

    def send(self, number: int, turn: Turn, session: str, placed: Placed) -> None:
        """Send a request. `placed` gets its engine and its lease, with flow control perhaps later.

        It gets the reason instead if no engine can ever serve the request, or if it is refused.
        """
        sidecar = self._chance.choice(self._sidecars)
        request = SimRequest(
            number, turn.prompt_tokens, turn.output.tokens, self._ids.of(turn), turn.adapter
        )
        if self._truth is not None:
            self._truth.ask(turn, request)
        sidecar.admit(self._api, turn, session, partial(self._decided, request, placed))

    def later(self, action: Action) -> None:
        """Do something after the time that a message takes."""
        if self._delay:
            self.timeline.at(self.timeline.now + self._delays.uniform(0, self._delay), action)
        else:
            action()

    def _decided(self, request: SimRequest, placed: Placed, outcome: Decision | Refusal) -> None:
        self.later(partial(self._submit, request, placed, outcome))

    def _submit(self, request: SimRequest, placed: Placed, outcome: Decision | Refusal) -> None:
        if isinstance(outcome, Refusal):
            placed(outcome.message)
            return
        lease = outcome.lease
        engine = self._numbers[lease.endpoint.address]
        try:
            self.engines.submit(engine, request)
        except ValueError as error:
            lease.release()
            placed(str(error))
        else:
            placed(Placement(engine, lease))
