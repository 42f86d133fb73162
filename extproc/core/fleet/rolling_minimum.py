"""The lowest value of late, in constant space."""

from __future__ import annotations

from math import inf

_WINDOW_SECONDS = 30.0


class RollingMinimum:
    """Of the last thirty to sixty seconds."""

    __slots__ = ("_before", "_began", "_now")

    def __init__(self) -> None:
        self._before = inf
        self._now = inf
        self._began = -inf

    def add(self, value: float, now: float) -> float:
        """The lowest, this one included."""
        if now - self._began >= _WINDOW_SECONDS:
            self._before, self._now, self._began = self._now, inf, now
        self._now = min(self._now, value)
        return min(self._before, self._now)
