"""Fairness between tenants: virtual token counters.

Each tenant has a counter of the tokens that it was served. The tenant with the lowest counter is
next. A tenant that comes back is lifted to the lowest counter of those that wait, or to that of the
one that was served last if none waits. So it cannot save up credit while it is idle. This is VTC
(Sheng et al.: "Fairness in Serving Large Language Models", OSDI 2024). A tenant with requests in
flight was not idle, and keeps a credit of up to a quantum. So a tenant that uses less than its
share rarely waits. A warm request of another tenant may go first while its counter exceeds the
lowest one by at most a quantum, as in DLPM ("Locality-aware Fair Scheduling in LLM Serving", 2025).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from heapq import heapify, heappop, heappush

from extproc.core.flow_control.waiter import Lane, Waiter

QUANTUM = 20_000.0
"""Tokens by which a tenant may be ahead of the one with the lowest counter."""

_KEPT = 1_024
"""Idle tenants whose counters are kept."""


class Tenant:
    """The counter and the waiting requests of one tenant, by lane, oldest first."""

    __slots__ = ("counter", "lanes", "running", "waiting")

    def __init__(self, counter: float) -> None:
        self.counter = counter
        self.lanes: dict[Lane, dict[Waiter, None]] = {}
        self.waiting = 0
        self.running = 0
        """Requests in flight."""

    @property
    def is_active(self) -> bool:
        """True if it has requests, in the queue or in flight."""
        return self.waiting > 0 or self.running > 0

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


class _ByCounter:
    """Tenants that satisfy a condition, the lowest counter first.

    Equal counters are in the order of arrival. An entry that is out of date is dropped when it
    comes up.
    """

    def __init__(self, tenants: Mapping[str, Tenant], holds: Callable[[Tenant], bool]) -> None:
        self.entries: list[tuple[float, int, str]] = []
        self._tenants = tenants
        self._holds = holds
        self._pushed = 0

    def push(self, name: str) -> None:
        """Add a tenant with its present counter."""
        self._pushed += 1
        heappush(self.entries, (self._tenants[name].counter, self._pushed, name))
        if len(self.entries) > 4 * len(self._tenants) + 64:
            self.entries = [entry for entry in self.entries if self._is_current(entry)]
            heapify(self.entries)

    def first(self) -> str | None:
        """Return the name of the tenant with the lowest counter; None if there is none."""
        while self.entries:
            if self._is_current(self.entries[0]):
                return self.entries[0][2]
            heappop(self.entries)
        return None

    def in_order(self) -> Iterator[Tenant]:
        """Yield the tenants, the lowest counter first.

        The caller usually stops at one of the first, so this reads only the top of the heap.
        """
        self.first()  # drops entries that are out of date from the top
        heap = self.entries
        following = [(heap[0], 0)] if heap else []
        while following:
            entry, position = heappop(following)
            if self._is_current(entry):
                yield self._tenants[entry[2]]
            for child in range(2 * position + 1, min(2 * position + 3, len(heap))):
                heappush(following, (heap[child], child))

    def _is_current(self, entry: tuple[float, int, str]) -> bool:
        counter, _, name = entry
        tenant = self._tenants.get(name)
        return tenant is not None and tenant.counter == counter and self._holds(tenant)


class Tenants:
    """All tenants of a priority class."""

    def __init__(self) -> None:
        self._tenants: dict[str, Tenant] = {}
        self._queued = 0
        self._in_queue = _ByCounter(self._tenants, lambda tenant: tenant.waiting > 0)
        self._active = _ByCounter(self._tenants, lambda tenant: tenant.is_active)
        self._most = 2 * _KEPT
        """Number of tenants at which idle ones are forgotten. It is at least twice the number after
        the last time, so that this does not take much time for each tenant."""
        self._floor = 0.0
        """The lowest counter of those that waited last, or the counter of the one that was served
        last while none waited."""
        self.active = 0
        """Number of tenants with requests, in the queue or in flight."""

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
            credit = QUANTUM if tenant.running else 0.0
            tenant.counter = max(tenant.counter, self.lowest() - credit)
        is_first = not tenant.waiting
        self.active += not tenant.is_active
        tenant.add(waiter)
        self._queued += 1
        if is_first:
            self._in_queue.push(name)
            self._active.push(name)

    def remove(self, name: str, waiter: Waiter) -> None:
        """Remove a waiting request."""
        tenant = self._tenants[name]
        tenant.remove(waiter)
        self._queued -= 1
        self.active -= not tenant.is_active

    def dispatched(self, name: str, tokens: float) -> None:
        """Record a request that is in flight from now on, and charge its prompt."""
        tenant = self.of(name)
        self.active += not tenant.is_active
        tenant.running += 1
        self.charge(name, tokens)

    def ended(self, name: str, tokens: float) -> None:
        """Record the end of a request in flight, and charge its response."""
        tenant = self._tenants[name]
        tenant.running -= 1
        self.active -= not tenant.is_active
        self.charge(name, tokens)

    def charge(self, name: str, tokens: float) -> None:
        """Add tokens to a tenant's counter."""
        tenant = self.of(name)
        if not self._queued:
            # While nothing waits, there is enough for all. So all begin with the same counter when
            # requests wait again.
            tenant.counter = self._floor = max(tenant.counter, self._floor)
            self._floor += tokens
        tenant.counter += tokens
        if tenant.waiting:
            self._in_queue.push(name)
        if tenant.is_active:
            self._active.push(name)

    def lowest(self) -> float:
        """Return the lowest counter of the tenants that wait."""
        name = self._in_queue.first()
        if name is not None:
            self._floor = max(self._floor, self._tenants[name].counter)
        return self._floor

    def next_name(self) -> str:
        """Return the name of the tenant that waits with the lowest counter; empty if none waits."""
        return self._in_queue.first() or ""

    def in_order(self) -> Iterator[Tenant]:
        """Return the tenants that wait, the lowest counter first."""
        return self._in_queue.in_order()

    def is_ahead(self, name: str) -> bool:
        """Return True if another tenant with requests was served fewer tokens."""
        lowest = self._active.first()
        return (
            lowest is not None
            and lowest != name
            and name in self._tenants
            and self._tenants[lowest].counter < self._tenants[name].counter
        )

    def counter(self, name: str) -> float:
        """Return a tenant's counter."""
        return self._tenants[name].counter

    def _forget_idle(self) -> None:
        """Forget idle tenants, when there are many; they come back with the lowest counter."""
        if len(self._tenants) >= self._most:
            idle = [(t.counter, name) for name, t in self._tenants.items() if not t.is_active]
            for _, name in sorted(idle)[: max(0, len(idle) - _KEPT)]:
                del self._tenants[name]
            self._most = 2 * max(_KEPT, len(self._tenants))
