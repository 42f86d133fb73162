"""Fairness between tenants: virtual token counters.

Each tenant has a counter of the tokens that it was served. The tenant with the lowest counter is
next. A tenant that comes back is lifted to the lowest counter of those that wait, or to that of the
one that was served last if none waits. So it cannot save up credit while it is idle. This is VTC
(Sheng et al.: "Fairness in Serving Large Language Models", OSDI 2024). A warm request of another
tenant may go first while its counter exceeds the lowest one by at most a quantum, as in DLPM
("Locality-aware Fair Scheduling in LLM Serving", 2025).
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop, heappush

from extproc.core.flow_control.waiter import Lane, Waiter

QUANTUM = 20_000.0
"""Tokens by which a tenant may be ahead of the one with the lowest counter."""

_KEPT = 1_024
"""Idle tenants whose counters are kept."""


class Tenant:
    """The counter and the waiting requests of one tenant, by lane, oldest first."""

    __slots__ = ("counter", "lanes", "waiting")

    def __init__(self, counter: float) -> None:
        self.counter = counter
        self.lanes: dict[Lane, dict[Waiter, None]] = {}
        self.waiting = 0

    def oldest(self, lane: Lane) -> Waiter | None:
        """Return the request that waits for the longest time in a lane."""
        return next(iter(self.lanes.get(lane, ())), None)

    def add(self, waiter: Waiter) -> None:
        """Add a request as the newest."""
        self.lanes.setdefault(waiter.lane, {})[waiter] = None
        self.waiting += 1

    def remove(self, waiter: Waiter) -> None:
        """Remove a waiting request."""
        line = self.lanes[waiter.lane]
        del line[waiter]
        if not line:
            del self.lanes[waiter.lane]
        self.waiting -= 1


class Tenants:
    """All tenants of a priority class."""

    def __init__(self) -> None:
        self._tenants: dict[str, Tenant] = {}
        self._heap: list[tuple[float, int, str]] = []
        """Counters of tenants that wait, in the order of their arrival if they are equal. An entry
        with another counter than the tenant's is out of date."""
        self._pushed = 0
        self._waiting = 0
        self._most = 2 * _KEPT
        """Number of tenants at which idle ones are forgotten. It is at least twice the number after
        the last time, so that this does not take much time for each tenant."""
        self._floor = 0.0
        """The lowest counter of those that waited last, or the counter of the one that was served
        last while none waited."""

    def __len__(self) -> int:
        return len(self._tenants)

    def waiting(self) -> int:
        """Return the number of tenants whose requests wait."""
        return sum(1 for tenant in self._tenants.values() if tenant.waiting)

    def of(self, name: str) -> Tenant:
        """Return the tenant, which may be new."""
        tenant = self._tenants.get(name)
        if tenant is None:
            self._forget_idle()
            tenant = self._tenants[name] = Tenant(self._floor)
        return tenant

    def add(self, name: str, waiter: Waiter) -> None:
        """Add a waiting request."""
        tenant = self.of(name)
        if not tenant.waiting:
            tenant.counter = max(tenant.counter, self.lowest())
            self._push(name, tenant)
        tenant.add(waiter)
        self._waiting += 1

    def remove(self, name: str, waiter: Waiter) -> None:
        """Remove a waiting request."""
        self._tenants[name].remove(waiter)
        self._waiting -= 1

    def charge(self, name: str, tokens: float) -> None:
        """Add tokens to a tenant's counter."""
        tenant = self.of(name)
        if not self._waiting:
            # While nothing waits, there is enough for all. So all begin with the same counter when
            # requests wait again.
            tenant.counter = self._floor = max(tenant.counter, self._floor) + tokens
            return
        tenant.counter += tokens
        if tenant.waiting:
            self._push(name, tenant)
            if len(self._heap) > 4 * len(self._tenants) + 64:
                self._heap = [entry for entry in self._heap if self._is_current(entry)]
                heapify(self._heap)

    def lowest(self) -> float:
        """Return the lowest counter of the tenants that wait."""
        tenant = self.next()
        if tenant is not None:
            self._floor = max(self._floor, tenant.counter)
        return self._floor

    def next(self) -> Tenant | None:
        """Return the tenant with the lowest counter; None if none waits."""
        heap = self._heap
        while heap:
            if self._is_current(heap[0]):
                return self._tenants[heap[0][2]]
            heappop(heap)
        return None

    def in_order(self) -> Iterator[Tenant]:
        """Yield the tenants that wait, the lowest counter first.

        The caller usually stops at one of the first, so this reads only the top of the heap.
        """
        self.next()  # drops entries that are out of date from the top
        heap = self._heap
        following = [(heap[0], 0)] if heap else []
        while following:
            entry, position = heappop(following)
            if self._is_current(entry):
                yield self._tenants[entry[2]]
            for child in range(2 * position + 1, min(2 * position + 3, len(heap))):
                heappush(following, (heap[child], child))

    def counter(self, name: str) -> float:
        """Return a tenant's counter."""
        return self._tenants[name].counter

    def _push(self, name: str, tenant: Tenant) -> None:
        self._pushed += 1
        heappush(self._heap, (tenant.counter, self._pushed, name))

    def _is_current(self, entry: tuple[float, int, str]) -> bool:
        counter, _, name = entry
        tenant = self._tenants.get(name)
        return tenant is not None and tenant.waiting > 0 and tenant.counter == counter

    def _forget_idle(self) -> None:
        """Forget idle tenants, when there are many; they come back with the lowest counter."""
        if len(self._tenants) >= self._most:
            idle = [(t.counter, name) for name, t in self._tenants.items() if not t.waiting]
            for _, name in sorted(idle)[: max(0, len(idle) - _KEPT)]:
                del self._tenants[name]
            self._most = 2 * max(_KEPT, len(self._tenants))
