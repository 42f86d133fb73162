"""A phase of a simulation: the warm-up, or the measured part."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from random import Random
from typing import Any, NamedTuple

import numpy as np

from extproc.core.fleet.ledger import Lease
from extproc.lab.engine.replica import StepTokens
from extproc.lab.measures.run import Floats, Ints, Run
from extproc.lab.simulation.client import Client
from extproc.lab.simulation.events import Event, Leave
from extproc.lab.simulation.fleet import Placement, SimulatedFleet
from extproc.lab.simulation.scenario import Scenario
from extproc.lab.simulation.talks import Ask
from extproc.lab.workloads.workload import Workload


class _Flight(NamedTuple):
    """A request on an engine."""

    ask: Ask
    lease: Lease


class Phase:
    """A part of the workload on the fleet, from its first request to its last token."""

    def __init__(
        self, fleet: SimulatedFleet, workload: Workload, scenario: Scenario, offset: int
    ) -> None:
        turns = list(workload.turns)
        self._fleet = fleet
        self._scenario = scenario
        self._offset = offset  # of request ids, which the fleet numbers
        self._flights: dict[int, _Flight] = {}
        self._retried: set[int] = set()
        self._broken: list[int] = []
        self._prompt: Ints = np.array([turn.prompt_tokens for turn in turns], dtype=np.int64)
        self._output: Ints = np.array([turn.output.tokens for turn in turns], dtype=np.int64)
        self._cached: Ints = np.full(len(turns), -1, dtype=np.int64)
        self._endpoint: Ints = np.full(len(turns), -1, dtype=np.int64)
        self._refusals: dict[int, str] = {}
        self._sessions = [len(session.turns) for session in workload.all_sessions]
        firsts = np.cumsum([0, *self._sessions])[:-1]
        self._session_of: Ints = np.repeat(firsts, self._sessions)
        rng = Random(f"client {scenario.seed}")
        self._client = Client(fleet.timeline, workload, scenario.client, self._send, rng)

    def run(self, progress: Callable[[int], None], events: Sequence[Event] = ()) -> None:
        """Run the phase; `progress` is called with the number of newly answered requests."""
        fleet = self._fleet
        fleet.engines.on_tokens = self._on_tokens
        self._progress = progress
        self._preempted = fleet.engines.preemptions
        fleet.engines.kv_usage()
        self._began = fleet.timeline.now
        for event in events:
            fleet.timeline.at(self._began + event.at, partial(self._happen, event))
        self._client.start()
        fleet.timeline.run(lambda: self._client.over)
        # The client may have read tokens at the moment of the break.
        self._client.first[self._broken] = np.nan
        self._client.last[self._broken] = np.nan

    def result(self) -> Run:
        """Return the figures of each request."""
        client, scenario = self._client, self._scenario
        seconds = self._fleet.timeline.now - self._began
        return Run(
            workload=scenario.workload.name,
            strategy=scenario.routing.strategy,
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
            "preemptions": self._fleet.engines.preemptions - self._preempted,
            "kv_cache_usage": self._fleet.engines.kv_usage(),
            **_times(client.last[ends] - client.sent[begins]),
        }
        if self._refusals:
            notes["refused"] = next(iter(self._refusals.values()))
        if self._scenario.events:
            notes |= {"retried": len(self._retried), "broken": len(self._broken)}
        return notes

    def _send(self, ask: Ask) -> None:
        number = ask.number
        session = str(self._offset + int(self._session_of[number]))
        placed = partial(self._placed, ask)
        self._fleet.send(self._offset + number, ask.turn, session, placed)

    def _placed(self, ask: Ask, placement: Placement | str) -> None:
        """Record where a request went, or that it was refused."""
        number = ask.number
        if isinstance(placement, str):
            self._refusals[number] = placement
            self._fail(number)
            return
        self._flights[number] = _Flight(ask, placement.lease)
        self._endpoint[number] = placement.engine

    def _fail(self, number: int) -> None:
        self._progress(1)
        self._client.fail(number)

    def _happen(self, event: Event) -> None:
        self._fleet.happen(event)
        if isinstance(event, Leave):
            for number in [n for n in self._flights if self._endpoint[n] == event.number]:
                self._lose(number)

    def _lose(self, number: int) -> None:
        """Handle a request on a dead engine: retry it once if no response has begun, as Envoy does.

        A response that the client has partly received cannot be retried.
        """
        flight = self._flights.pop(number)
        flight.lease.release()
        if self._cached[number] < 0 and number not in self._retried:
            self._retried.add(number)
            self._send(flight.ask)
        else:
            self._broken.append(number)
            self._fail(number)

    def _on_tokens(self, _: int, tokens: StepTokens) -> None:
        if self._offset:
            tokens = _shifted(tokens, self._offset)
        for number, cached in tokens.first.items():
            self._cached[number] = cached
            self._flights[number].lease.begin()
            if self._scenario.answers_shown:
                self._flights[number].lease.finish_prefill()
        for number in tokens.finished:
            self._fleet.later(self._flights.pop(number).lease.release)
        if tokens.finished:
            self._progress(len(tokens.finished))
        self._client.receive(tokens)


def _times(sessions: Floats) -> dict[str, float]:
    """Return the mean time of the sessions that ended well."""
    well = sessions[~np.isnan(sessions)]
    return {"mean_session_ms": 1000 * float(well.mean())} if well.size else {}


def _shifted(tokens: StepTokens, offset: int) -> StepTokens:
    return StepTokens(
        [number - offset for number in tokens.request_ids],
        {number - offset: cached for number, cached in tokens.first.items()},
        [number - offset for number in tokens.finished],
    )
