"""RoundRobin: each endpoint in turn."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from extproc.core.fleet.endpoint import Snapshot
from extproc.core.strategies.base import Candidate, Query, Reason, Strategy


class RoundRobin(Strategy):
    """Counts one turn for all requests of a model, with or without an adapter."""

    def __init__(self) -> None:
        self._turn = 0

    def preview(self) -> Strategy:
        """Return a copy, because each ranking takes a turn."""
        copy = RoundRobin()
        copy._turn = self._turn
        return copy

    def rank(
        self, query: Query, snapshot: Snapshot, loads: Mapping[str, int]
    ) -> Iterator[Candidate]:
        eligible = snapshot.eligible(query.adapter)
        turn, self._turn = self._turn, self._turn + 1
        for hops in range(len(eligible)):
            endpoint = eligible[(turn + hops) % len(eligible)]
            yield Candidate(endpoint, hops, Reason.ROUND_ROBIN)
