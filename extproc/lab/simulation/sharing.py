"""The shared state of simulated sidecars: the product's own batches, which arrive after a delay."""

from __future__ import annotations

from functools import partial

from extproc.core.fleet.fleet import Fleet
from extproc.core.sharing.batch import Batch
from extproc.core.sharing.journal import Journal
from extproc.core.sharing.peers import Peers
from extproc.lab.simulation.timeline import Timeline


class SharedState:
    """Reports what happens at each sidecar to all others `delay` seconds later."""

    def __init__(self, timeline: Timeline, delay: float) -> None:
        self._timeline = timeline
        self._delay = delay
        self._peers: list[Peers] = []

    def join(self, fleet: Fleet) -> None:
        """Let a sidecar take part, by its state of the fleet."""
        origin, clock = str(len(self._peers)), self._timeline.clock
        journal = Journal(origin, fleet, clock, lambda: self._timeline.at(clock(), take))
        take = partial(self._take, journal)
        self._peers.append(Peers(origin, fleet, clock))

    def _take(self, journal: Journal) -> None:
        arrive = partial(self._arrive, journal.take())
        self._timeline.at(self._timeline.now + self._delay, arrive)

    def _arrive(self, batch: Batch) -> None:
        for peers in self._peers:
            peers.receive(batch, self._delay)
