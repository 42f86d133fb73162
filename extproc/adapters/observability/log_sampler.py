"""Limits the rate of log lines that any client can cause."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic

BURST = 5
"""Lines of a kind that may be written at once."""

LINES_PER_SECOND = 1.0
"""Lines of a kind that may be written per second after a burst."""


class LogSampler:
    """A token bucket for each kind of line. Kinds must be few: buckets are never dropped."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._buckets: dict[str, _Bucket] = {}

    def admit(self, kind: str) -> int | None:
        """Return how many lines of this kind were suppressed since the last one was written.

        None if this line is suppressed, too.
        """
        now = self._clock()
        bucket = self._buckets.get(kind)
        if bucket is None:
            bucket = self._buckets[kind] = _Bucket(float(BURST), now)
        tokens = bucket.tokens + (now - bucket.at) * LINES_PER_SECOND
        bucket.tokens, bucket.at = min(tokens, float(BURST)), now
        if bucket.tokens < 1:
            bucket.suppressed += 1
            return None
        bucket.tokens -= 1
        suppressed, bucket.suppressed = bucket.suppressed, 0
        return suppressed


@dataclass(slots=True)
class _Bucket:
    tokens: float
    at: float
    suppressed: int = 0
