"""When endpoints are asked: often while they have requests, seldom while they are broken.

All times are seconds; the caller says what time it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import NamedTuple

from extproc.core.routing.catalog import Catalog

LONGEST_BACKOFF = 10.0
"""Between two readings of an endpoint that fails, unless it is asked less often anyway."""

_JITTER = 0.1


class Plan(NamedTuple):
    """What an endpoint is asked for, and how often."""

    busy: float
    """Between two readings while it has requests."""

    idle: float
    """While it has none."""

    metrics: bool
    """Whether some model's strategy reads its metrics."""

    adapters: bool
    """Whether some model takes its adapters from it."""

    def joined(self, other: Plan) -> Plan:
        """What satisfies both, where two models have the same endpoint."""
        return Plan(
            min(self.busy, other.busy),
            min(self.idle, other.idle),
            self.metrics or other.metrics,
            self.adapters or other.adapters,
        )


def plans(catalog: Catalog) -> Mapping[str, Plan]:
    """The plan for each address that is asked for anything."""
    found: dict[str, Plan] = {}
    for model in catalog.models.values():
        if not model.is_asked:
            continue
        spec = model.spec.load_balancing.signals
        reads, discovers = model.strategy.reads_signals, model.discovers_adapters
        plan = Plan(spec.interval_seconds, spec.idle_interval_seconds, reads, discovers)
        for endpoint in model.snapshot.endpoints:
            other = found.get(endpoint.address)
            found[endpoint.address] = plan.joined(other) if other else plan
    return found


class ReadingTimes:
    """The times of one kind of reading of one endpoint."""

    def __init__(self, due: float, rng: Random) -> None:
        self.due = due
        """When it is time for the next."""
        self.asked = due
        """When the last was sent."""
        self.failures = 0
        """Since the last success."""
        self._rng = rng

    def succeeded(self, interval: float) -> None:
        """The next comes an interval after this one was sent."""
        self.failures = 0
        self.due = self.asked + self._jittered(interval)

    def failed(self, now: float, interval: float) -> None:
        """The next comes later each time."""
        # More doublings change nothing, and would overflow one day.
        self.failures = min(self.failures + 1, 10)
        backoff = min(LONGEST_BACKOFF, interval * 2.0**self.failures)
        self.due = now + self._jittered(max(interval, backoff))

    def hurry(self, interval: float) -> bool:
        """No more than this between two from now on, unless it fails; whether that is sooner."""
        sooner = not self.failures and self.due > self.asked + interval * (1 + _JITTER)
        if sooner:
            self.due = self.asked + self._jittered(interval)
        return sooner

    def postpone(self, until: float) -> None:
        """Not before then."""
        self.due = max(self.due, until)

    def _jittered(self, seconds: float) -> float:
        # Else sidecars that started together would go on asking together.
        return seconds * self._rng.uniform(1 - _JITTER, 1 + _JITTER)


class Pacer:
    """Bounds readings over all endpoints: intervals stretch where there are too many."""

    def __init__(self, per_second: float, together: int) -> None:
        self._step = 1 / per_second
        self._credit = together * self._step
        self._next = 0.0

    def reserve(self, now: float) -> float:
        """How long to wait before the next reading. After a rest some may come together."""
        self._next = max(self._next, now - self._credit) + self._step
        return max(0.0, self._next - now)

    def charge(self, readings: int) -> None:
        """A reading took as much as so many more."""
        self._next += readings * self._step
