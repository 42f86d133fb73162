"""The rate at which requests end on an engine, by its own counter."""

from __future__ import annotations

from math import exp

from extproc.core.fleet.report import Report

_WINDOW_SECONDS = 30.0
"""Seconds over which ended requests are counted; older ones count less."""


class EndRate:
    """The recent rate of one engine."""

    __slots__ = ("_at", "_before", "_ended", "_seconds")

    def __init__(self, report: Report, now: float) -> None:
        """Begin with a first reading."""
        self._at = now
        self._before = report.finished
        self._ended = 0.0
        self._seconds = 0.0

    def read(self, report: Report, now: float, *, counts: bool = True) -> None:
        """Take the next reading. If `counts` is false, ignore the time since the previous one."""
        if counts:
            kept = exp((self._at - now) / _WINDOW_SECONDS)
            self._ended = self._ended * kept + increase(self._before, report.finished)
            self._seconds = self._seconds * kept + now - self._at
        self._at, self._before = now, report.finished

    @property
    def per_second(self) -> float:
        """The ended requests per second; 0 if unknown."""
        return self._ended / self._seconds if self._seconds else 0.0


def increase(before: float | None, now: float | None) -> float:
    """Return by how much a counter has risen; 0 if it is unknown or began again."""
    return 0.0 if before is None or now is None else max(0.0, now - before)
