"""The rate of dispatches, for estimates of waiting times."""

from __future__ import annotations

from math import exp

_WINDOW_SECONDS = 10.0
_FEWEST = 0.5
"""Events, of which older ones count less."""


class Rate:
    """Events per second, of which older ones count less."""

    __slots__ = ("_at", "_count", "_since")

    def __init__(self) -> None:
        self._count = 0.0
        self._at = 0.0
        self._since: float | None = None

    def add(self, now: float) -> None:
        """Count an event."""
        if self._since is None:
            self._since = now
        self._decay(now)
        self._count += 1

    def of(self, now: float) -> float:
        """Return the events per second; 0 if there were too few lately to know."""
        if self._since is None:
            return 0.0
        self._decay(now)
        if self._count < _FEWEST:
            return 0.0
        # At first, the window is not full.
        seconds = _WINDOW_SECONDS * (1 - exp(-max(now - self._since, 1.0) / _WINDOW_SECONDS))
        return self._count / seconds

    def _decay(self, now: float) -> None:
        self._count *= exp((self._at - now) / _WINDOW_SECONDS)
        self._at = now
