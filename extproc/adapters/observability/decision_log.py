"""The last decisions and refusals, for the status page.

Every request is recorded, but the page is rarely open. So recording keeps references, and
reading formats them. Prompts and headers are not kept: a decision has the hash of the prefix, and
of a refusal only its code is shown, because its message may quote the client.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from time import perf_counter
from typing import NamedTuple

from extproc.core.conversation.verdict import Verdict

KEPT = 200
"""Verdicts that are kept."""


class Recorded(NamedTuple):
    """One verdict, as it is read."""

    number: int
    """Counts the verdicts since the start, from 1."""
    age_seconds: float
    verdict: Verdict
    seconds: float
    """The time that the decision took."""


class DecisionLog:
    """A ring buffer of verdicts."""

    def __init__(self) -> None:
        self._entries: deque[tuple[float, Verdict, float]] = deque(maxlen=KEPT)
        self.total = 0
        """Verdicts since the start."""

    def record(self, verdict: Verdict, seconds: float) -> None:
        """Keep a verdict and the time that it took."""
        self.total += 1
        self._entries.append((perf_counter(), verdict, seconds))

    def after(self, number: int) -> Iterator[Recorded]:
        """Yield the kept verdicts with a higher number, the oldest first."""
        now, first = perf_counter(), self.total - len(self._entries) + 1
        for position, (at, verdict, seconds) in enumerate(self._entries, first):
            if position > number:
                yield Recorded(position, now - at, verdict, seconds)
