"""LeastRequest: the one with fewer requests in flight of two taken by chance.

Envoy's `LEAST_REQUEST` with its default of two choices, drawn with replacement;
the first drawn where they are equal. Two choices do nearly as well as looking at
all (Mitzenmacher, "The Power of Two Choices in Randomized Load Balancing", 1996),
and sidecars that do not know of each other do not run to the same endpoint.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from random import Random

from extproc.core.fleet.endpoint import Snapshot
from extproc.core.strategies.base import Candidate, Query, Reason, Strategy


class LeastRequest(Strategy):
    """The second candidate is drawn in the same way among the others."""

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
