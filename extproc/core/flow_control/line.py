"""The waiting requests of one priority class, in the order in which they are dispatched.

The next request is the oldest of the tenant with the lowest counter. If it is not warm on an
endpoint that has room, another one that is goes first. If there is none, an endpoint with little
load gets it. A request that was overtaken too often, or whose deadline is near, is next without
regard to caches. A prompt shorter than a block is in no cache, so it counts as warm everywhere.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from itertools import islice
from math import inf

from extproc.core.fleet.endpoint import Snapshot
from extproc.core.flow_control.tenants import QUANTUM, Tenant, Tenants
from extproc.core.flow_control.waiter import Lane, Waiter

_OVERTAKES_EACH = 64
"""A request may be overtaken this number of times for each endpoint."""
_OVERTAKES_AHEAD = 2.0
"""Or this number of times for each request that waited when it came."""
_TRIED = 16
"""Warm requests of an endpoint that are considered."""
_MOST_COLD = 64
"""Tenants whose next request waits for another endpoint, after which warm requests of any tenant go
first. So the work does not grow with the number of tenants."""

_COLD_SHARE = 1 / 16
"""Load of an endpoint, as a share of its limit, up to which requests that are warm elsewhere go
there at once."""
_LEAST_CROWD = 16
"""Requests that may wait for an endpoint where they are warm, although few wait for others."""
_PATIENCE = 0.75
"""Share of its longest wait after which a request goes to any endpoint with room."""

_EVERYWHERE = ""
"""The home of requests with short prompts."""

Open = Mapping[str, float]
"""The endpoints that have room, by address, with their load as a share of their limit."""


class OpenEndpoints:
    """The endpoints of a model that have room, for each lane."""

    def __init__(self, addresses: Open, available: Snapshot) -> None:
        self.addresses = addresses
        self._available = available

    def of(self, lane: Lane) -> Open:
        """Return the endpoints that have room and can serve the requests of a lane."""
        subset = lane.subset
        if not lane.adapter and subset is None:
            return self.addresses
        return {
            one.address: self.addresses[one.address]
            for one in self._available.eligible(lane.adapter)
            if one.address in self.addresses and (subset is None or subset.allows(one.address))
        }


class Line:
    """The queue of one priority class."""

    def __init__(self) -> None:
        self.tenants = Tenants()
        self.waiting = 0
        """Number of requests that wait."""
        self._left = 0
        self._homes: dict[str, dict[Waiter, None]] = {}
        """Requests by the endpoints where they are warm, the oldest first."""
        self._in_order: dict[Waiter, None] = {}
        """All requests, the oldest first."""

    def add(self, waiter: Waiter) -> None:
        """Add a request."""
        waiter.ahead, waiter.mark = self.waiting, self._left
        self.waiting += 1
        self._in_order[waiter] = None
        self.tenants.add(waiter.arrival.tenant, waiter)
        for address in _homes(waiter):
            self._homes.setdefault(address, {})[waiter] = None

    def remove(self, waiter: Waiter) -> None:
        """Remove a request, for any reason."""
        self.waiting -= 1
        self._left += 1
        del self._in_order[waiter]
        self.tenants.remove(waiter.arrival.tenant, waiter)
        for address in _homes(waiter):
            warm = self._homes[address]
            del warm[waiter]
            if not warm:
                del self._homes[address]

    def oldest(self) -> Waiter | None:
        """Return the request that waits for the longest time."""
        return next(iter(self._in_order), None)

    def newest(self) -> Waiter | None:
        """Return the request that came last."""
        return next(reversed(self._in_order), None)

    def overtaken(self, waiter: Waiter) -> int:
        """Return how often the oldest request of a tenant was overtaken, at most."""
        return max(0, self._left - waiter.mark - waiter.ahead)

    def pick(
        self, endpoints: OpenEndpoints, every: Collection[str], now: float
    ) -> tuple[Waiter, Open] | None:
        """Return the next request, and the endpoints that it may go to; None if there is none.

        `every` has the addresses of all endpoints, with or without room.
        """
        cold = 0
        for tenant in self.tenants.in_order():
            head, opened = self._head(tenant, endpoints)
            if head is None:
                continue
            if cold == _MOST_COLD:
                return self._warm(endpoints, inf)
            most = max(_OVERTAKES_EACH * len(every), _OVERTAKES_AHEAD * head.ahead)
            if self.overtaken(head) >= most:
                return head, opened
            at_home = _at_home(head, opened)
            if at_home:
                return head, at_home
            warm = self._warm(endpoints, tenant.counter + QUANTUM)
            if warm is not None and (head.homes or not warm[0].is_warm_everywhere):
                return warm
            free = opened if self._is_crowded(head, every) else _free(head, opened, now)
            if free:
                return head, free
            cold += 1
        return None

    def _is_crowded(self, waiter: Waiter, every: Collection[str]) -> bool:
        """Return True if too many requests wait for the endpoints where this one is warm.

        Also if it is warm nowhere, or only on endpoints that left.
        """
        most = max(_LEAST_CROWD, waiter.crowd * self.waiting / len(every))
        return all(len(self._homes[address]) > most for address in waiter.homes if address in every)

    def _head(self, tenant: Tenant, endpoints: OpenEndpoints) -> tuple[Waiter | None, Open]:
        """Return the tenant's oldest request that an endpoint with room can serve."""
        found: tuple[Waiter | None, Open] = (None, {})
        for lane in tenant.lanes:
            opened = endpoints.of(lane)
            oldest = tenant.oldest(lane) if opened else None
            if oldest is not None and (found[0] is None or oldest.number < found[0].number):
                found = oldest, opened
        return found

    def _warm(self, endpoints: OpenEndpoints, counter: float) -> tuple[Waiter, Open] | None:
        """Return the oldest request that is warm on an endpoint with room."""
        best: tuple[Waiter, Open] | None = None
        for address in (*endpoints.addresses, _EVERYWHERE):
            found = self._oldest(address, endpoints, counter)
            if found is not None and (best is None or found[0].number < best[0].number):
                best = found
        return best

    def _oldest(
        self, address: str, endpoints: OpenEndpoints, counter: float
    ) -> tuple[Waiter, Open] | None:
        """Return the oldest request that is warm on an endpoint, or everywhere."""
        for waiter in islice(self._homes.get(address, ()), _TRIED):
            if self.tenants.counter(waiter.arrival.tenant) <= counter:
                # An endpoint may have lost an adapter since the request came.
                opened = endpoints.of(waiter.lane)
                if address == _EVERYWHERE and opened:
                    return waiter, opened
                if address in opened:
                    return waiter, {address: opened[address]}
        return None


def _homes(waiter: Waiter) -> Collection[str]:
    """Return the endpoints where a request is warm, or `_EVERYWHERE` alone."""
    return (_EVERYWHERE,) if waiter.is_warm_everywhere else waiter.homes


def _at_home(waiter: Waiter, opened: Open) -> Open:
    """Return the open endpoints where a request is warm."""
    if waiter.is_warm_everywhere:
        return opened
    return {address: opened[address] for address in waiter.homes if address in opened}


def _free(head: Waiter, opened: Open, now: float) -> Open:
    """Return the endpoints whose load is low enough for a request that is warm elsewhere."""
    if now - head.at >= _PATIENCE * (head.deadline - head.at):
        return opened
    return {address: load for address, load in opened.items() if load <= _COLD_SHARE}
