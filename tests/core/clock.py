"""Time that passes only when a test says so."""

from __future__ import annotations

from extproc.core.fleet.signals import Load, Report, Signals


class Clock:
    """Seconds since some beginning."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        """Lets time pass."""
        self.now += seconds


def report(
    waiting: float = 0,
    running: float = 0,
    kv_usage: float = 0,
    *,
    max_loras: int | None = None,
    adapters: frozenset[str] = frozenset(),
) -> Report:
    """What an endpoint's metrics say, with all adapters running."""
    return Report(Load(waiting, kv_usage), running, max_loras, adapters)


def signals(clock: Clock, *addresses: str) -> Signals:
    """Signals of endpoints that came long ago."""
    found = Signals(clock)
    found.set_endpoints(addresses)
    clock.advance(10_000)
    return found
