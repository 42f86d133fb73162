"""A workload against a simulated fleet: client, sidecars, engines on one timeline."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np

from extproc.core.ledger import Lease
from extproc.core.spec import LoadBalancingSpec
from extproc.lab.fleet.block_ids import BlockIds
from extproc.lab.fleet.client import IDEAL, SINGLE_THREADED, Ask, Client, ClientCosts
from extproc.lab.fleet.engines import Engines
from extproc.lab.fleet.sidecars import Routing, Sidecar
from extproc.lab.fleet.timeline import Timeline
from extproc.lab.measures.run import Floats, Ints, Run
from extproc.lab.profile import Profile
from extproc.lab.replica import SimRequest, StepTokens
from extproc.lab.workloads.workload import Turn, Workload


@dataclass(frozen=True)
class Scenario:
    """What is simulated."""

    workload: Workload
    profile: Profile
    routing: Routing
    replicas: int = 8
    sidecars: int = 1
    """Requests come to each of them by chance, and none knows of the others."""

    client: ClientCosts = IDEAL
    seed: int = 0

    @classmethod
    def of(
        cls,
        workload: Workload,
        engine: Profile,
        load_balancing: LoadBalancingSpec,
        *,
        limited_client: bool = False,
        seed: int = 0,
    ) -> Scenario:
        """The workload's own fleet, with the client's limits or without."""
        return cls(
            workload,
            engine,
            Routing(load_balancing, workload.adapters),
            workload.replicas,
            workload.sidecars,
            SINGLE_THREADED if limited_client else IDEAL,
            seed,
        )


class _Refused(Exception):
    """The engine says why."""


class _Fleet:
    """Sidecars and engines, and the requests that are on them."""

    def __init__(self, scenario: Scenario) -> None:
        self.timeline = Timeline()
        self.engines = Engines(self.timeline, scenario.profile, scenario.replicas)
        self.engines.warm_adapters(list(scenario.routing.adapters))
        seed = scenario.seed
        self._sidecars = [
            Sidecar(self.timeline, self.engines.replicas, scenario.routing, f"{seed} {number}")
            for number in range(scenario.sidecars)
        ]
        self._api = scenario.workload.api
        endpoints = scenario.routing.endpoints(scenario.replicas)
        self._numbers = {address: number for number, address in enumerate(endpoints)}
        self._chance = Random(f"sidecar {seed}")
        self._ids = BlockIds(scenario.profile.block_size)

    def send(self, number: int, turn: Turn) -> tuple[int, Lease]:
        """The engine that a request goes to. Raises _Refused where that can never serve it."""
        sidecar = self._chance.choice(self._sidecars)
        lease = sidecar.decide(self._api, turn).lease
        engine = self._numbers[lease.endpoint.address]
        request = SimRequest(
            number, turn.prompt_tokens, turn.output.tokens, self._ids.of(turn), turn.adapter
        )
        try:
            self.engines.submit(engine, request)
        except ValueError as error:
            lease.release()
            raise _Refused(str(error)) from None
        return engine, lease


class _Phase:
    """A part of the workload on the fleet, from its first request to its last token."""

    def __init__(self, fleet: _Fleet, workload: Workload, scenario: Scenario, offset: int) -> None:
        turns = [turn for session in workload.sessions for turn in session.turns]
        self._fleet = fleet
        self._scenario = scenario
        self._offset = offset  # of request ids, which are the fleet's
        self._leases: dict[int, Lease] = {}
        self._prompt: Ints = np.array([turn.prompt_tokens for turn in turns], dtype=np.int64)
        self._output: Ints = np.array([turn.output.tokens for turn in turns], dtype=np.int64)
        self._cached: Ints = np.full(len(turns), -1, dtype=np.int64)
        self._endpoint: Ints = np.full(len(turns), -1, dtype=np.int64)
        self._refusals: dict[int, str] = {}
        self._sessions = [len(session.turns) for session in workload.sessions]
        rng = Random(f"client {scenario.seed}")
        self._client = Client(fleet.timeline, workload, scenario.client, self._send, rng)

    def run(self, progress: Callable[[int], None]) -> None:
        self._fleet.engines.on_tokens = self._on_tokens
        self._progress = progress
        self._preempted = self._preemptions()
        self._fleet.engines.kv_usage()
        self._began = self._fleet.timeline.now
        self._client.start()
        self._fleet.timeline.run(lambda: self._client.over)

    def result(self) -> Run:
        client, scenario = self._client, self._scenario
        seconds = self._fleet.timeline.now - self._began
        return Run(
            workload=scenario.workload.name,
            strategy=scenario.routing.load_balancing.strategy,
            seconds=seconds,
            wanted=client.wanted - self._began,
            sent=client.sent - self._began,
            first=client.first - self._began,
            last=client.last - self._began,
            prompt_tokens=self._prompt,
            output_tokens=self._output,
            cached_tokens=self._cached,
            endpoint=self._endpoint,
            gaps=np.concatenate(client.gaps) if client.gaps else np.array([]),
            client_busy=client.busy_seconds / seconds if seconds else 0.0,
            notes=self._notes(),
        )

    def _notes(self) -> dict[str, Any]:
        client = self._client
        ends = np.cumsum(self._sessions) - 1
        begins = ends - np.array(self._sessions) + 1
        notes: dict[str, Any] = {
            "endpoints": self._scenario.replicas,
            "preemptions": self._preemptions() - self._preempted,
            "kv_cache_usage": self._fleet.engines.kv_usage(),
            **_times(client.last[ends] - client.sent[begins]),
        }
        if self._refusals:
            notes["refused"] = next(iter(self._refusals.values()))
        return notes

    def _preemptions(self) -> int:
        return sum(one.preemptions for one in self._fleet.engines.replicas)

    def _send(self, ask: Ask) -> None:
        number = ask.number
        try:
            engine, lease = self._fleet.send(self._offset + number, ask.turn)
        except _Refused as refusal:
            self._refusals[number] = str(refusal)
            self._progress(1)
            self._client.fail(number)
            return
        self._leases[number] = lease
        self._endpoint[number] = engine

    def _on_tokens(self, _: int, tokens: StepTokens) -> None:
        if self._offset:
            tokens = _shifted(tokens, self._offset)
        for number, cached in tokens.first.items():
            self._cached[number] = cached
        for number in tokens.finished:
            self._leases.pop(number).release()
        if tokens.finished:
            self._progress(len(tokens.finished))
        self._client.receive(tokens)


def _times(sessions: Floats) -> dict[str, float]:
    """Of sessions that ended well."""
    well = sessions[~np.isnan(sessions)]
    return {"mean_session_ms": 1000 * float(well.mean())} if well.size else {}


def simulate(scenario: Scenario, progress: Callable[[int], None] = lambda more: None) -> Run:
    """Runs it from the first request to the last token; deterministic in the seed.

    `progress` is told of requests that are answered.
    """
    fleet = _Fleet(scenario)
    before = scenario.workload.before
    if before.sessions:
        _Phase(fleet, before, scenario, 0).run(progress)
    phase = _Phase(fleet, scenario.workload.measured, scenario, before.requests)
    phase.run(progress)
    return phase.result()


def _shifted(tokens: StepTokens, offset: int) -> StepTokens:
    return StepTokens(
        [number - offset for number in tokens.request_ids],
        {number - offset: cached for number, cached in tokens.first.items()},
        [number - offset for number in tokens.finished],
    )
