"""The state of one model's flow: its queue, and its requests in flight."""

from __future__ import annotations

from extproc.core.flow_control.queue import PriorityClass, Queue
from extproc.core.flow_control.rate import Rate
from extproc.core.flow_control.waiter import Arrival

_RECENT_SECONDS = 60.0
"""Time after its last request for which a class counts as active."""
_RECENT = 0.02
"""Weight of the latest request in a mean: about fifty count."""


class ModelFlow:
    """The queue and the recent requests of one model."""

    def __init__(self, model: str) -> None:
        self.model = model
        self.queue = Queue()
        self.rate = Rate()
        """Dispatches per second."""
        self.own: dict[str, int] = {}
        """This sidecar's requests on each endpoint."""
        self.tokens = 0.0
        """Mean tokens of the prompts of recent requests."""
        self.to_compute = 0.0
        """Mean tokens that endpoints had to compute for recent requests."""
        self._arrived = self._dispatched = 0
        self._seen: dict[str, tuple[int, float]] = {}

    def arrived(self, group: PriorityClass, arrival: Arrival, now: float) -> None:
        """Record a request that came."""
        self._seen[group.name] = group.priority, now
        self._arrived += 1
        self.tokens += max(_RECENT, 1 / self._arrived) * (arrival.tokens - self.tokens)

    def revised(self, group: PriorityClass) -> None:
        """Record that the priority of a class has changed."""
        if group.name in self._seen:
            self._seen[group.name] = group.priority, self._seen[group.name][1]

    def dispatched(self, address: str, to_compute: float) -> None:
        """Record a request that goes to an endpoint, which computes this number of tokens."""
        self.own[address] = self.own.get(address, 0) + 1
        self._dispatched += 1
        self.to_compute += max(_RECENT, 1 / self._dispatched) * (to_compute - self.to_compute)

    def ended(self, address: str) -> None:
        """Record the end of a request."""
        left = self.own[address] - 1
        if left:
            self.own[address] = left
        else:
            del self.own[address]

    def is_above(self, group: PriorityClass, now: float) -> bool:
        """Return True if a class with a higher priority is active."""
        since = now - _RECENT_SECONDS
        return any(p > group.priority and at > since for p, at in self._seen.values())

    def is_shared(self, now: float) -> bool:
        """Return True if several classes, or several tenants of a class, are active."""
        since = now - _RECENT_SECONDS
        active = sum(at > since for _, at in self._seen.values())
        return active > 1 or any(one.line.tenants.active > 1 for one in self.queue.classes.values())
