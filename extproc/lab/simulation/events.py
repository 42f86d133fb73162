"""What happens to engines while a workload runs: they come, and they die."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class Leave(NamedTuple):
    """An engine dies with all that it had, and discovery tells so in the same moment."""

    at: float
    """Seconds from the beginning of what is measured."""

    number: int
    """The engine's."""


class Join(NamedTuple):
    """An engine comes, with nothing in its cache; it may have been there before."""

    at: float
    number: int


Event = Leave | Join


def absent(events: Iterable[Event]) -> frozenset[int]:
    """Engines that are not there from the beginning: what is heard of them first is a Join."""
    first: dict[int, Event] = {}
    for event in sorted(events, key=lambda one: one.at):
        first.setdefault(event.number, event)
    return frozenset(number for number, event in first.items() if isinstance(event, Join))
