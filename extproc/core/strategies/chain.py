"""Chain: a configurable list of filters, applied in order (`loadBalancing.chain`).

Each filter keeps the best of the endpoints that the previous one kept. Among those that remain, the
one with the fewest known requests in flight is chosen, and among equals the first on the ring. So
sidecars with the same information make the same choice, and a prefix stays on its endpoint.

The second candidate is the endpoint that would be chosen without the first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from random import Random

from extproc.core.fleet.endpoint import Snapshot
from extproc.core.fleet.estimate import Estimate, estimates
from extproc.core.fleet.sent_request import SentRequest
from extproc.core.fleet.signals import Signals
from extproc.core.schema import SignalsSpec
from extproc.core.strategies.base import Candidate, Query, Reason, Strategy
from extproc.core.strategies.filters import Filter


class Chain(Strategy):
    """A strategy of filters. `presets` has the chains with names of their own."""

    reads_signals = True

    def __init__(
        self, filters: Sequence[Filter], signals: Signals, spec: SignalsSpec, rng: Random
    ) -> None:
        self._filters = filters
        self._signals = signals
        self._spec = spec
        self._rng = rng

    def rank(
        self, query: Query, snapshot: Snapshot, loads: Mapping[str, int]
    ) -> Iterator[Candidate]:
        eligible = snapshot.eligible(query.adapter)
        remaining = estimates(eligible, loads, self._signals, self._spec)
        for hops in range(len(remaining)):
            best, reason = self._best(query, snapshot, remaining)
            yield Candidate(best.endpoint, hops, reason)
            remaining = [estimate for estimate in remaining if estimate is not best]

    def describe(self, query: Query, chosen: Candidate) -> SentRequest:
        """Return the adapter, which the endpoint will load before the next scrape shows it."""
        return SentRequest(query.adapter)

    def _best(
        self, query: Query, snapshot: Snapshot, endpoints: Sequence[Estimate]
    ) -> tuple[Estimate, Reason]:
        """Return the best endpoint, and the reason of the filter that left only this one."""
        left = endpoints
        reason = Reason.ONLY_ONE
        for each in self._filters:
            if len(left) == 1:
                return left[0], reason
            kept = each.keep(query, snapshot, left)
            if len(kept.endpoints) < len(left):
                left, reason = kept
        fewest = min(estimate.inflight for estimate in left)
        ties = [estimate for estimate in left if estimate.inflight == fewest]
        if len(ties) == 1:
            return ties[0], reason if len(left) == 1 else Reason.LEAST_LOAD
        return self._first_on_ring(query, snapshot, ties), Reason.RING

    def _first_on_ring(
        self, query: Query, snapshot: Snapshot, ties: Sequence[Estimate]
    ) -> Estimate:
        """Return the first of these endpoints after the key, or after a random position."""
        key = self._rng.getrandbits(64) if query.key is None else query.key
        by_address = {estimate.endpoint.address: estimate for estimate in ties}
        walk = snapshot.walk(key, query.adapter)
        return next(by_address[e.address] for e in walk if e.address in by_address)
