"""The waiting requests of one model: a line for each priority class, and their deadlines."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop, heappush

from extproc.core.flow_control.line import Line
from extproc.core.flow_control.waiter import Waiter

DEFAULT_CLASS = "default"


class PriorityClass:
    """A class with its requests."""

    __slots__ = ("line", "name", "priority")

    def __init__(self, name: str, priority: int) -> None:
        self.name = name
        self.priority = priority
        self.line = Line()


class Queue:
    """All requests of a model that wait."""

    def __init__(self) -> None:
        self.classes: dict[str, PriorityClass] = {}
        """The classes that requests have named so far, by name."""
        self.waiting = 0
        self._number = 0
        self._deadlines: list[tuple[float, int, Waiter]] = []

    def group(self, name: str, priority: int) -> PriorityClass:
        """Return a class. Its priority may differ from that of earlier requests."""
        group = self.classes.get(name)
        if group is None:
            group = self.classes[name] = PriorityClass(name, priority)
        group.priority = priority
        return group

    def in_order(self) -> Iterator[PriorityClass]:
        """Yield the classes in which requests wait, the highest priority first."""
        if len(self.classes) == 1:
            yield from (one for one in self.classes.values() if one.line.waiting)
            return
        ordered = sorted(self.classes.values(), key=lambda one: -one.priority)
        yield from (one for one in ordered if one.line.waiting)

    def add(self, waiter: Waiter, group: PriorityClass) -> None:
        """Add a request."""
        self._number += 1
        self.waiting += 1
        waiter.is_dropped = False
        waiter.number = self._number
        waiter.group = group.name
        group.line.add(waiter)
        heappush(self._deadlines, (waiter.deadline, waiter.number, waiter))

    def remove(self, waiter: Waiter) -> None:
        """Remove a request. A second call does nothing."""
        if waiter.is_dropped:
            return
        waiter.is_dropped = True
        self.waiting -= 1
        self.classes[waiter.group].line.remove(waiter)
        if len(self._deadlines) > 2 * self.waiting + 64:
            self._deadlines = sorted(one for one in self._deadlines if not one[2].is_dropped)

    def take(self, most: int) -> list[Waiter]:
        """Remove the oldest requests, so that other queues can have them, and return them."""
        taken = self.everyone()[:most]
        for waiter in taken:
            self.remove(waiter)
        self._deadlines = sorted(one for one in self._deadlines if not one[2].is_dropped)
        return taken

    def expired(self, now: float) -> Iterator[Waiter]:
        """Yield the requests whose deadline has passed; the caller removes them."""
        while self._deadlines and self._deadlines[0][0] <= now:
            waiter = heappop(self._deadlines)[2]
            if not waiter.is_dropped:
                yield waiter

    def ahead(self, priority: int) -> int:
        """Return the number of requests that go before a new one of this priority."""
        return sum(one.line.waiting for one in self.classes.values() if one.priority >= priority)

    def sheddable(self, priority: int) -> Waiter | None:
        """Return the request that makes space for one of this priority; None if there is none.

        It is the newest one of the lowest class, if that class has a negative priority.
        """
        groups = [one for one in self.classes.values() if one.line.waiting]
        lowest = min(groups, key=lambda one: one.priority, default=None)
        if lowest is None or lowest.priority >= min(priority, 0):
            return None
        return lowest.line.newest()

    def oldest(self) -> Waiter | None:
        """Return the request that waits for the longest time; None if none waits."""
        lines = (one.line.oldest() for one in self.classes.values())
        found = (waiter for waiter in lines if waiter is not None)
        return min(found, key=lambda waiter: waiter.number, default=None)

    def everyone(self) -> list[Waiter]:
        """Return all waiting requests, the oldest first."""
        return [
            waiter
            for _, _, waiter in sorted(self._deadlines, key=lambda one: one[1])
            if not waiter.is_dropped
        ]
