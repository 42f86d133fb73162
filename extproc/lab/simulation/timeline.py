"""Simulated time: actions in their order."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count

Action = Callable[[], None]


class Timeline:
    """A clock that jumps from one action to the next. Actions of one moment run in their order."""

    def __init__(self) -> None:
        self.now = 0.0
        """Seconds."""
        self._due: list[tuple[float, int, Action]] = []
        self._numbers = count()

    def at(self, time: float, action: Action) -> None:
        """Schedule an action; a time in the past means after the actions that are due now."""
        heappush(self._due, (max(time, self.now), next(self._numbers), action))

    def clock(self) -> float:
        """Return the time, as a clock function."""
        return self.now

    def run(self, over: Callable[[], bool]) -> None:
        """Run until `over` returns True or no actions are left."""
        due = self._due
        while due and not over():
            self.now, _, action = heappop(due)
            action()
