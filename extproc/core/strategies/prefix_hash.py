"""PrefixHash: consistent hashing with bounded loads (CHWBL).

A request goes to the first endpoint within the load bound, clockwise from its key on the ring. So
a prefix stays on one endpoint, until that endpoint has clearly more than its share of the load.
Then its requests spill to the next endpoints on the ring, always in the same order.

Mirrokni, Thorup, Zadimoghaddam: "Consistent Hashing with Bounded Loads" (2018). The names, the
defaults and the form of the bound are KubeAI's. Unlike in KubeAI, the mean covers only endpoints
that are eligible for the request's adapter, so that one of them is always within the bound.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import repeat
from math import inf
from operator import attrgetter
from typing import NamedTuple

from extproc.core.fleet.endpoint import Endpoint, Snapshot
from extproc.core.strategies.base import Candidate, Query, Reason, Strategy
from extproc.core.strategies.least_load import LeastLoad

_address = attrgetter("address")


class Bound(NamedTuple):
    """The load bound: total + 1 over endpoints, times factor / 100, as an exact fraction."""

    numerator: int
    denominator: int

    @property
    def max_inflight(self) -> int:
        """The highest number of requests in flight with which an endpoint is within the bound."""
        return self.numerator // self.denominator


class PrefixHash(Strategy):
    """Consistent hashing with bounded loads. Requests without a prefix go to the least load.

    A constant key for them would overload one endpoint. `mean_load_factor` is in percent, 100 or
    more. `count_arrival` adds the arriving request to an endpoint's load before it is compared with
    the bound, as in the release of KubeAI's published benchmarks.
    """

    def __init__(
        self, mean_load_factor: int, least_load: LeastLoad, *, count_arrival: bool = False
    ) -> None:
        self._factor = mean_load_factor
        self._least_load = least_load
        self._arrival = 1 if count_arrival else 0

    def bound(self, eligible: Sequence[Endpoint], loads: Mapping[str, int]) -> Bound | None:
        """Return the load bound of these endpoints; None if they have no request in flight."""
        total = sum(map(loads.get, map(_address, eligible), repeat(0)))
        return Bound((total + 1) * self._factor, len(eligible) * 100) if total else None

    def rank(
        self, query: Query, snapshot: Snapshot, loads: Mapping[str, int]
    ) -> Iterator[Candidate]:
        if query.key is None:
            yield from self._least_load.rank(query, snapshot, loads, Reason.NO_PREFIX)
            return
        bound = self.bound(snapshot.eligible(query.adapter), loads)
        limit = inf if bound is None else bound.max_inflight - self._arrival
        over: list[Candidate] = []
        for hops, endpoint in enumerate(snapshot.walk(query.key, query.adapter)):
            if loads.get(endpoint.address, 0) <= limit:
                yield Candidate(endpoint, hops, Reason.BOUND if hops else Reason.PREFIX)
            else:
                over.append(Candidate(endpoint, hops, Reason.OVER_BOUND))
        yield from over

    @property
    def crowd(self) -> float:
        return self._factor / 100

    def homes(self, query: Query, snapshot: Snapshot) -> tuple[str, ...]:
        if query.key is None:
            return ()
        home = next(snapshot.walk(query.key, query.adapter), None)
        return () if home is None else (home.address,)
