"""Schedule of readings: frequent while an endpoint has requests, rare while it fails.

All times are in seconds; the caller passes the current time.
"""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import NamedTuple

from extproc.core.routing.catalog import Catalog

LONGEST_BACKOFF = 10.0
"""Longest time between two readings of an endpoint that fails, unless its interval is longer."""

FIRST_SHARE = 0.25
"""Share of the busy interval that is used while an engine's times are not known yet."""

FIRST_READINGS = 60
"""Readings with the shorter interval, at most: some engines do not count their times."""

METRICS_PER_SECOND = 200.0
"""Limit of the readings of all endpoints' metrics together: one costs about a quarter of a
millisecond."""

TOGETHER = 50
"""Readings that may start together, as they do after the start."""

FIRST_PER_SECOND = 500.0
"""Limit of the first readings. They are not paced like the others, because nothing is known before
them."""

_JITTER = 0.1


class Plan(NamedTuple):
    """The paths to read from an endpoint, and the intervals."""

    busy: float
    """Interval while the endpoint has requests."""

    idle: float
    """Interval while it has none."""

    metrics: bool
    """True if a model uses the endpoint's metrics."""

    adapters: bool
    """True if a model discovers its adapters from the endpoint."""

    def joined(self, other: Plan) -> Plan:
        """Return a plan that satisfies both, for an endpoint that two models share."""
        return Plan(
            min(self.busy, other.busy),
            min(self.idle, other.idle),
            self.metrics or other.metrics,
            self.adapters or other.adapters,
        )


def plans(catalog: Catalog) -> Mapping[str, Plan]:
    """Return a plan for each address from which anything is read."""
    found: dict[str, Plan] = {}
    for model in catalog.models.values():
        if not model.is_scraped:
            continue
        spec = model.spec.load_balancing.signals
        reads, discovers = model.reads_metrics, model.discovers_adapters
        plan = Plan(spec.interval_seconds, spec.idle_interval_seconds, reads, discovers)
        for endpoint in model.snapshot.endpoints:
            other = found.get(endpoint.address)
            found[endpoint.address] = plan.joined(other) if other else plan
    return found


class ReadingTimes:
    """Times of one kind of reading of one endpoint."""

    def __init__(self, due: float, rng: Random) -> None:
        self.due = due
        """Time of the next reading."""
        self.started = due
        """Time of the last request."""
        self.failures = 0
        """Failures since the last success."""
        self._rng = rng

    def succeeded(self, interval: float) -> None:
        """Schedule the next reading an interval after this one was sent."""
        self.failures = 0
        self.due = self.started + self._jittered(interval)

    def failed(self, now: float, interval: float) -> None:
        """Schedule the next reading, later after each failure."""
        # More doublings change nothing, and would overflow in the end.
        self.failures = min(self.failures + 1, 10)
        backoff = min(LONGEST_BACKOFF, interval * 2.0**self.failures)
        self.due = now + self._jittered(max(interval, backoff))

    def hurry(self, interval: float) -> bool:
        """Shorten the wait to this interval, unless readings fail; return True if it was longer."""
        sooner = not self.failures and self.due > self.started + interval * (1 + _JITTER)
        if sooner:
            self.due = self.started + self._jittered(interval)
        return sooner

    def postpone(self, until: float) -> None:
        """Schedule the next reading no earlier than `until`."""
        self.due = max(self.due, until)

    def _jittered(self, seconds: float) -> float:
        # Otherwise sidecars that started together would always read together.
        return seconds * self._rng.uniform(1 - _JITTER, 1 + _JITTER)


class Pacer:
    """Limits the rate of all readings together; intervals grow if there are too many endpoints."""

    def __init__(self, per_second: float, together: int) -> None:
        self._step = 1 / per_second
        self._credit = together * self._step
        self._next = 0.0

    def reserve(self, now: float) -> float:
        """Return the wait before the next reading; after a pause a few need not wait."""
        self._next = max(self._next, now - self._credit) + self._step
        return max(0.0, self._next - now)

    def keeps_up(self, now: float) -> bool:
        """Return True if no reading waits."""
        return self._next <= now

    def charge(self, readings: int) -> None:
        """Account for a reading that cost as much as `readings` additional ones."""
        self._next += readings * self._step


class FirstReadings:
    """The first readings of an endpoint with requests, which follow each other sooner.

    A new endpoint may be much faster or slower than the others, and gets its first prompts before
    this is known.
    """

    def __init__(self, pacer: Pacer) -> None:
        self._pacer = pacer
        self._left = FIRST_READINGS

    def interval(self, plan: Plan, now: float, *, are_times_known: bool) -> float:
        """Return the interval while the endpoint has requests.

        While readings wait for the pacer, it is the usual one.
        """
        if are_times_known:
            self._left = FIRST_READINGS  # for the next engine at this address
        is_short = not are_times_known and self._left > 0 and self._pacer.keeps_up(now)
        return plan.busy * FIRST_SHARE if is_short else plan.busy

    def after_reading(self, plan: Plan, now: float, *, are_times_known: bool) -> float:
        """Return the interval after a reading, and count it if it is short."""
        seconds = self.interval(plan, now, are_times_known=are_times_known)
        self._left -= seconds < plan.busy
        return seconds


class PathReader:
    """Schedules the readings of one path of an endpoint."""

    def __init__(self, path: str, pacer: Pacer, retries: Pacer, due: float, rng: Random) -> None:
        """`retries` is the pacer of endpoints that failed more than once."""
        self.path = path
        self.pacer = pacer
        self.times = ReadingTimes(due, rng)
        self._retries = retries
        self._admitted = False
        self.was_read = False
        """True after the first reading, even if it failed."""

    def is_due(self, now: float) -> bool:
        """Return True if a reading is due and the pacer allows it; otherwise postpone it."""
        if self.times.due > now:
            return False
        if not self._admitted and self.was_read:
            pacer = self.pacer if self.times.failures < 2 else self._retries
            self.times.postpone(now + pacer.reserve(now))
            self._admitted = self.times.due > now
            return not self._admitted
        self._admitted = False
        return True

    def hurry(self, interval: float) -> bool:
        """Shorten the wait, unless a reading waits for the pacer; return True if it was longer."""
        return not self._admitted and self.times.hurry(interval)
