"""Engines whose queue does not move, because a preempted request is the first one in it.

If a running request needs more room than the KV cache has, the engine preempts one. This request
goes to the head of the queue, and the others wait behind it until running requests end and it fits.
If it is large, the cache may look half empty. The engine counts preemptions
(`vllm:num_preemptions_total`). Once a request gets its first token, the queue moves again.

If requests end often, there is room soon, and no queue counts as blocked.
"""

from __future__ import annotations

from math import exp

from extproc.core.fleet.report import Report

_WINDOW_SECONDS = 30.0
"""Seconds over which ended requests are counted; older ones count less."""

_OFTEN = 1.0
"""Ended requests per second from which no queue counts as blocked."""


class _Queue:
    """The queue of one endpoint, and the requests that ended there."""

    __slots__ = ("_at", "_before", "_ended", "_seconds", "_stands")

    def __init__(self, report: Report, now: float) -> None:
        self._at = now
        self._before = report
        self._ended = 0.0
        self._seconds = 0.0
        self._stands = False

    @property
    def is_blocked(self) -> bool:
        return self._stands and self._ended < _OFTEN * self._seconds

    def read(self, report: Report, now: float) -> None:
        """Take the next reading."""
        before = self._before
        kept = exp((self._at - now) / _WINDOW_SECONDS)
        self._ended = self._ended * kept + _increase(before.finished, report.finished)
        self._seconds = self._seconds * kept + now - self._at
        if _increase(before.preemptions, report.preemptions):
            self._stands = True
        elif _increase(before.first_tokens, report.first_tokens):
            self._stands = False
        self._stands &= report.load.waiting > 0
        self._at, self._before = now, report


class BlockedQueues:
    """The queues of all endpoints."""

    def __init__(self) -> None:
        self._queues: dict[str, _Queue] = {}

    def read(self, address: str, report: Report, now: float) -> bool:
        """Take a reading; return True if the queue is blocked."""
        queue = self._queues.get(address)
        if queue is None:
            self._queues[address] = _Queue(report, now)
            return False
        queue.read(report, now)
        return queue.is_blocked

    def forget(self, address: str) -> None:
        """Forget an endpoint that left or restarted."""
        self._queues.pop(address, None)


def _increase(before: float | None, now: float | None) -> float:
    """Return by how much a counter has risen; 0 if it is unknown or began again."""
    return 0.0 if before is None or now is None else max(0.0, now - before)
