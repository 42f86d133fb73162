"""llm-d's flow control with its default saturation detector, for comparison.

Requests wait while the fleet is saturated. Bands by priority are strict; within a band the tenants
take turns, and requests of a tenant are served in the order of arrival. The saturation of an
endpoint is the larger one of queue / 5 and KV cache usage / 0.8, of a fleet the mean of its
endpoints; readings older than 0.2 s count as saturated. While the fleet is not saturated, every
request is dispatched, so one reading may admit many. These are the README files and defaults of
llm-d-router, August 2026.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import NamedTuple

from extproc.core.flow_control.waiter import Arrival, Released
from extproc.core.request.refusals import QueueTimeout, Refusal
from extproc.core.routing.decision import Decision
from extproc.core.routing.resolved_request import ResolvedRequest
from extproc.core.routing.router import Router

_QUEUE = 5.0
_KV_USAGE = 0.8
_STALE_SECONDS = 0.2 + 0.05
"""The readings' greatest age. The simulated scrapes have jitter, so each may be a little older."""


class _Held(NamedTuple):
    """A request that waits."""

    resolved: ResolvedRequest
    released: Released
    deadline: float


class SaturationGate:
    """Holds the requests of one model while its fleet is saturated."""

    def __init__(
        self, router: Router, clock: Callable[[], float], priorities: Mapping[str, int], wait: float
    ) -> None:
        self.wake: Callable[[], None] = lambda: None
        self._router = router
        self._clock = clock
        self._priorities = priorities
        self._wait = wait
        self._bands: dict[int, dict[str, deque[_Held]]] = {}

    @property
    def waiting(self) -> int:
        """Number of requests that wait."""
        bands = self._bands.values()
        return sum(len(line) for tenants in bands for line in tenants.values())

    def admit(
        self, resolved: ResolvedRequest, arrival: Arrival, released: Released
    ) -> Decision | None:
        """Decide a request, or hold it and return None."""
        if not self._bands and not self._is_saturated(resolved):
            return self._router.decide(resolved)
        priority = self._priorities.get(arrival.objective, 0)
        tenants = self._bands.setdefault(priority, {})
        held = _Held(resolved, released, self._clock() + self._wait)
        tenants.setdefault(arrival.tenant, deque()).append(held)
        return None

    def run(self) -> bool:
        """Dispatch what may be dispatched. Return False, because nothing more is due."""
        while self._bands:
            band = max(self._bands)
            tenants = self._bands[band]
            name, line = next(iter(tenants.items()))
            held = line[0]
            if held.deadline > self._clock() and self._is_saturated(held.resolved):
                return False
            line.popleft()
            del tenants[name]  # the tenant goes to the end
            if line:
                tenants[name] = line
            if not tenants:
                del self._bands[band]
            held.released(self._outcome(held))
        return False

    def _outcome(self, held: _Held) -> Decision | Refusal:
        if held.deadline <= self._clock():
            return QueueTimeout(held.resolved.model.spec.name, 1, "the request waited too long")
        try:
            return self._router.decide(self._router.current(held.resolved))
        except Refusal as refusal:
            return refusal

    def _is_saturated(self, resolved: ResolvedRequest) -> bool:
        signals = self._router.fleet.signals
        endpoints = self._router.current(resolved).snapshot.endpoints
        if not endpoints:
            return True
        total = 0.0
        for reading in signals.fresh([one.address for one in endpoints], _STALE_SECONDS):
            if reading is None:
                total += 1.0
            else:
                total += max(reading.load.waiting / _QUEUE, reading.load.kv_usage / _KV_USAGE)
        return total >= len(endpoints)
