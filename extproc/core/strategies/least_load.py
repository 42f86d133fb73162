"""LeastLoad: the endpoint with the fewest requests in flight."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from random import Random

from extproc.core.fleet.endpoint import Snapshot
from extproc.core.strategies.base import Candidate, Query, Reason, Strategy


class LeastLoad(Strategy):
    """Breaks ties at random, so that several sidecars do not all choose the same endpoint."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng

    def rank(
        self,
        query: Query,
        snapshot: Snapshot,
        loads: Mapping[str, int],
        reason: Reason = Reason.LEAST_LOAD,
    ) -> Iterator[Candidate]:
        remaining = list(snapshot.eligible(query.adapter))
        hops = 0
        while remaining:
            least = min(loads.get(endpoint.address, 0) for endpoint in remaining)
            ties = [e for e in remaining if loads.get(e.address, 0) == least]
            endpoint = self._rng.choice(ties)
            yield Candidate(endpoint, hops, reason)
            remaining.remove(endpoint)
            hops += 1
