"""Events during a workload: engines join and die."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class Leave(NamedTuple):
    """An engine dies and loses its requests. Discovery reports it at the same moment."""

    at: float
    """Seconds since the start of the measurement."""

    number: int
    """Number of the engine."""


class Join(NamedTuple):
    """An engine joins with an empty cache. It may have been there before."""

    at: float
    number: int


Event = Leave | Join


def absent(events: Iterable[Event]) -> frozenset[int]:
    """Return the engines that are absent at the start: their first event is a Join."""
    first: dict[int, Event] = {}
    for event in sorted(events, key=lambda one: one.at):
        first.setdefault(event.number, event)
    return frozenset(number for number, event in first.items() if isinstance(event, Join))
