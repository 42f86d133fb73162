"""Simulated time: what happens next, in order."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count

Action = Callable[[], None]


class Timeline:
    """Its clock jumps from one action to the next. Those of one moment run as they were asked."""

    def __init__(self) -> None:
        self.now = 0.0
        """Seconds."""
        self._due: list[tuple[float, int, Action]] = []
        self._numbers = count()

    def at(self, time: float, action: Action) -> None:
        """Does this then; at once, after what is due now, where that is past."""
        heappush(self._due, (max(time, self.now), next(self._numbers), action))

    def clock(self) -> float:
        """The time, for those that ask a clock."""
        return self.now

    def run(self, over: Callable[[], bool]) -> None:
        """Until it is over or nothing is left to do."""
        due = self._due
        while due and not over():
            self.now, _, action = heappop(due)
            action()
