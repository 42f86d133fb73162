"""The lowest value of the last seconds, in constant space."""

from __future__ import annotations

from math import inf

_WINDOW_SECONDS = 30.0


class RollingMinimum:
    """The minimum of two windows of `seconds`: the current one and the one before it."""

    __slots__ = ("_before", "_now", "_seconds", "_started")

    def __init__(self, seconds: float = _WINDOW_SECONDS) -> None:
        self._seconds = seconds
        self._before = inf
        self._now = inf
        self._started = -inf

    def add(self, value: float, now: float) -> float:
        """Add a value, and return the minimum including it."""
        if now - self._started >= self._seconds:
            is_next = now - self._started < 2 * self._seconds
            self._before, self._now, self._started = (self._now if is_next else inf), inf, now
        self._now = min(self._now, value)
        return min(self._before, self._now)
