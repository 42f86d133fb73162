"""A clock that tests advance, and signals that use it."""

from __future__ import annotations

from extproc.core.fleet.report import Load, Report
from extproc.core.fleet.signals import Signals


class Clock:
    """A clock in seconds that starts at 1000."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        """Advance the clock."""
        self.now += seconds


def report(
    waiting: float = 0,
    running: float = 0,
    kv_usage: float = 0,
    *,
    max_loras: int | None = None,
    adapters: frozenset[str] = frozenset(),
) -> Report:
    """Return a scrape of an endpoint. All of its adapters are running."""
    return Report(Load(waiting, kv_usage), running, max_loras, adapters)


def signals(clock: Clock, *addresses: str) -> Signals:
    """Return signals of endpoints whose slow start is over."""
    found = Signals(clock)
    found.set_endpoints(addresses)
    clock.advance(10_000)
    return found
