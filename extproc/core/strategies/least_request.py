"""LeastRequest: of two random endpoints, the one with fewer requests in flight.

This is Envoy's `LEAST_REQUEST` with its default of two choices, drawn with replacement. If both are
equal, the first one is chosen. Two choices balance nearly as well as a comparison of all endpoints
(Mitzenmacher, "The Power of Two Choices in Randomized Load Balancing", 1996). Independent sidecars
do not all choose the same endpoint.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from random import Random

from extproc.core.fleet.endpoint import Snapshot
from extproc.core.strategies.base import Candidate, Query, Reason, Strategy


class LeastRequest(Strategy):
    """Draws the second candidate in the same way from the other endpoints."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng

    def rank(
        self, query: Query, snapshot: Snapshot, loads: Mapping[str, int]
    ) -> Iterator[Candidate]:
        remaining = list(snapshot.eligible(query.adapter))
        for hops in range(len(remaining)):
            drawn = (self._rng.randrange(len(remaining)), self._rng.randrange(len(remaining)))
            best = min(drawn, key=lambda i: loads.get(remaining[i].address, 0))
            yield Candidate(remaining.pop(best), hops, Reason.LEAST_REQUEST)
