"""A limit of requests in flight, learned from latencies, for engines without metrics.

The gradient is the long-term mean latency over the present one. While latencies rise, a queue grows
in the engine, and the limit shrinks by the gradient. Otherwise it grows by the square root of
itself. This is Gradient2 of Netflix's concurrency-limits (Apache 2.0), with its constants:
https://github.com/Netflix/concurrency-limits.
"""

from __future__ import annotations

from math import sqrt

_FIRST = 20.0
_LEAST = 4.0
_MOST = 1_000.0
_LONG_WINDOW = 600
_WARM_UP = 10
_TOLERANCE = 1.5
"""Ratio of the present latency to the long-term mean up to which the limit does not shrink."""
_SMOOTHING = 0.2


class LatencyLimit:
    """The limit of one endpoint."""

    __slots__ = ("_long", "_samples", "limit")

    def __init__(self) -> None:
        self.limit = _FIRST
        """Requests in flight that the endpoint probably runs without a queue."""
        self._long = 0.0
        self._samples = 0

    def record(self, seconds: float, inflight: int) -> None:
        """Take a latency, and the requests that were in flight on the endpoint with it."""
        self._samples += 1
        weight = 2.0 / (_LONG_WINDOW + 1)
        if self._samples <= _WARM_UP:
            self._long += (seconds - self._long) / self._samples
        else:
            self._long += weight * (seconds - self._long)
        if self._long > 2 * seconds:
            self._long *= 0.95  # recover fast after an overload
        if inflight < self.limit / 2 or seconds <= 0:
            return  # the limit was not tried
        gradient = max(0.5, min(1.0, _TOLERANCE * self._long / seconds))
        wanted = self.limit * gradient + sqrt(self.limit)
        smoothed = self.limit * (1 - _SMOOTHING) + wanted * _SMOOTHING
        self.limit = max(_LEAST, min(_MOST, smoothed))
