"""Chain: filters of your own choice, one after the other (`loadBalancing.chain`).

Each filter keeps the best of what the one before it left. Among those that are
left at the end the one with the fewest of our requests in flight is taken, and
among equals the first on the ring, so that sidecars that know the same choose the
same, and equal endpoints keep their prefixes.

The second candidate is what would be chosen if the first were not there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from random import Random

from extproc.core.fleet.endpoint import Endpoint, Snapshot
from extproc.core.fleet.estimate import Estimate, estimates
from extproc.core.fleet.signals import Signals
from extproc.core.schema import SignalsSpec
from extproc.core.strategies.base import Candidate, Query, Reason, Strategy
from extproc.core.strategies.filters import Filter


class Chain(Strategy):
    """The named strategies that read signals are chains too; see `presets`."""

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

    def record_choice(self, query: Query, endpoint: Endpoint) -> None:
        """The adapter will be in memory there: known at once, long before the next reading."""
        if query.adapter:
            self._signals.residency.used(endpoint.address, query.adapter)

    def _best(
        self, query: Query, snapshot: Snapshot, endpoints: Sequence[Estimate]
    ) -> tuple[Estimate, Reason]:
        """The choice, and what narrowed it down to one."""
        left = endpoints
        reason = Reason.ONLY_ONE
        for one in self._filters:
            if len(left) == 1:
                return left[0], reason
            kept = one.keep(query, snapshot, left)
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
        """Where the key is, or, without one, anywhere: not the same place each time."""
        key = self._rng.getrandbits(64) if query.key is None else query.key
        by_address = {estimate.endpoint.address: estimate for estimate in ties}
        walk = snapshot.walk(key, query.adapter)
        return next(by_address[e.address] for e in walk if e.address in by_address)
