"""Engines whose queue does not move, because a preempted request is the first one in it.

If a running request needs more room than the KV cache has, the engine preempts one. This request
goes to the head of the queue, and the others wait behind it until running requests end and it fits.
If it is large, the cache may look half empty. The engine counts preemptions
(`vllm:num_preemptions_total`). Once a request gets its first token, the queue moves again.

If requests end often, there is room soon, and no queue counts as blocked.
"""

from __future__ import annotations

from extproc.core.fleet.end_rate import EndRate, increase
from extproc.core.fleet.report import Report

_OFTEN = 1.0
"""Ended requests per second from which no queue counts as blocked."""


class _Queue:
    """The queue of one endpoint, and how often requests end there."""

    __slots__ = ("_before", "_ends", "_stands")

    def __init__(self, report: Report, now: float) -> None:
        self._before = report
        self._ends = EndRate(report, now)
        self._stands = False

    @property
    def is_blocked(self) -> bool:
        return self._stands and self._ends.per_second < _OFTEN

    def read(self, report: Report, now: float) -> None:
        """Take the next reading."""
        before = self._before
        self._ends.read(report, now)
        if increase(before.preemptions, report.preemptions):
            self._stands = True
        elif increase(before.first_tokens, report.first_tokens):
            self._stands = False
        self._stands &= report.load.waiting > 0
        self._before = report


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
