"""An admission that knows when the engines' steps end, to compare flow control with.

It dispatches each request just before the step that computes its prompt, at most one for each step,
to the engine whose next step comes first. So no prompt ever waits in an engine, and no step
computes two. The classes are strict, and the tenant with the fewest requests so far is next. A
sidecar cannot do this, because it does not know when a step ends.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from extproc.core.flow_control.waiter import Arrival, Released
from extproc.core.request.refusals import Refusal
from extproc.core.routing.resolved_request import ResolvedRequest
from extproc.core.routing.router import Router
from extproc.lab.simulation.engines import Engines

_FULLEST = 0.9
"""KV cache usage up to which an engine gets further requests, because those that run still grow."""
_FULLEST_FOR_ONE = 0.95
"""The same for a tenant of which no other request waits."""


class _Held(NamedTuple):
    resolved: ResolvedRequest
    released: Released


class StepAdmission:
    """Holds the requests of one model until the step that computes them."""

    def __init__(
        self,
        router: Router,
        engines: Engines,
        addresses: Sequence[str],
        priorities: Mapping[str, int],
    ) -> None:
        """`addresses` are those of the engines, by number."""
        self.wake: Callable[[], None] = lambda: None
        self.waiting = 0
        self._router = router
        self._engines = engines
        self._addresses = addresses
        self._priorities = priorities
        self._bands: dict[int, dict[str, deque[_Held]]] = {}
        self._dispatched: Counter[str] = Counter()
        engines.before_step = self._before_step

    def admit(self, resolved: ResolvedRequest, arrival: Arrival, released: Released) -> None:
        """Hold a request until the next step."""
        priority = self._priorities.get(arrival.objective, 0)
        line = self._bands.setdefault(priority, {}).setdefault(arrival.tenant, deque())
        line.append(_Held(resolved, released))
        self.waiting += 1
        for number in range(len(self._addresses)):
            if self._engines.is_idle(number):
                self._before_step(number)

    def run(self) -> bool:
        """Return False: requests are dispatched before steps."""
        return False

    def _before_step(self, number: int) -> None:
        """Dispatch a request to an engine, if its batch has room."""
        engine = self._engines.replicas[number]
        if not self.waiting or engine.waiting:
            return
        tenants = self._bands[max(self._bands)]
        name = min(tenants, key=lambda tenant: self._dispatched[tenant])
        most = _FULLEST if len(tenants[name]) > 1 else _FULLEST_FOR_ONE
        if engine.kv_usage < most:
            held = self._take(name)
            try:
                resolved = self._router.current(held.resolved)
                held.released(self._router.decide(resolved, frozenset([self._addresses[number]])))
            except Refusal as refusal:
                held.released(refusal)

    def _take(self, name: str) -> _Held:
        """Remove and return the oldest request of a tenant in the highest class."""
        self.waiting -= 1
        self._dispatched[name] += 1
        priority = max(self._bands)
        tenants = self._bands[priority]
        held = tenants[name].popleft()
        if not tenants[name]:
            del tenants[name]
        if not tenants:
            del self._bands[priority]
        return held
