"""Random: each endpoint with the same probability, as a Kubernetes Service does per connection."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from random import Random

from extproc.core.fleet.endpoint import Snapshot
from extproc.core.strategies.base import Candidate, Query, Reason, Strategy


class RandomChoice(Strategy):
    """Ignores load and prefix."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng

    def rank(
        self, query: Query, snapshot: Snapshot, loads: Mapping[str, int]
    ) -> Iterator[Candidate]:
        remaining = list(snapshot.eligible(query.adapter))
        for hops in range(len(remaining)):
            endpoint = remaining.pop(self._rng.randrange(len(remaining)))
            yield Candidate(endpoint, hops, Reason.RANDOM)
