"""PrefixHash: consistent hashing with bounded loads (CHWBL).

A request starts at its key's place on the ring and walks on until it meets an
endpoint within the bound, so one prefix stays on one endpoint until that
endpoint carries clearly more than its share, and then spills to the same
neighbours each time.

Mirrokni, Thorup, Zadimoghaddam: "Consistent Hashing with Bounded Loads" (2018);
the names, defaults and the form of the bound are KubeAI's. Unlike there, only
endpoints that can serve the request's adapter count in the mean, so that one of
them is always within the bound.
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
    """(total + 1) / endpoints * factor / 100, kept as a fraction of whole numbers."""

    numerator: int
    denominator: int

    @property
    def most(self) -> int:
        """Requests that an endpoint may have and still take one more."""
        return self.numerator // self.denominator


class PrefixHash(Strategy):
    """A request without a prefix goes by least load: a constant key would pile such
    requests on one endpoint.

    `mean_load_factor` is in percent, 100 at least. `count_arrival` adds the
    arriving request to an endpoint's load before the bound is asked, as the
    release did that KubeAI's published benchmarks ran.
    """

    def __init__(
        self, mean_load_factor: int, least_load: LeastLoad, *, count_arrival: bool = False
    ) -> None:
        self._factor = mean_load_factor
        self._least_load = least_load
        self._arrival = 1 if count_arrival else 0

    def bound(self, eligible: Sequence[Endpoint], loads: Mapping[str, int]) -> Bound | None:
        """The load bound over these endpoints; None while nothing is in flight."""
        total = sum(map(loads.get, map(_address, eligible), repeat(0)))
        return Bound((total + 1) * self._factor, len(eligible) * 100) if total else None

    def rank(
        self, query: Query, snapshot: Snapshot, loads: Mapping[str, int]
    ) -> Iterator[Candidate]:
        if query.key is None:
            yield from self._least_load.rank(query, snapshot, loads, Reason.NO_PREFIX)
            return
        bound = self.bound(snapshot.eligible(query.adapter), loads)
        most = inf if bound is None else bound.most - self._arrival
        over: list[Candidate] = []
        for hops, endpoint in enumerate(snapshot.walk(query.key, query.adapter)):
            if loads.get(endpoint.address, 0) <= most:
                yield Candidate(endpoint, hops, Reason.BOUND if hops else Reason.PREFIX)
            else:
                over.append(Candidate(endpoint, hops, Reason.OVER_BOUND))
        yield from over
