"""The time that a new request waits on engines whose batches are full.

vLLM batches up to `--max-num-seqs` requests. Its metrics do not show this number, and the KV cache
may look half empty. A request that waits for other reasons does not need the largest batch: after
a long prompt, or once there is room in the cache, the batch grows. So a batch counts as full if it
was about as large as ever in each reading in which requests waited.

A new request then waits until all that wait before it, and one more, have taken the places of
requests that ended.
"""

from __future__ import annotations

from extproc.core.fleet.end_rate import EndRate
from extproc.core.fleet.report import Report

_LARGE = 32
"""Requests from which a batch may count as full. Batches of few requests often stay the same for
other reasons."""

_ABOUT = 0.95
"""Share of the largest batch from which a batch counts as about as large. The metrics are those of
the end of a step, without the requests that ended in it."""

_ENOUGH = 5
"""Readings of different steps after which the batch counts as full."""

_QUEUE_SHARE = 1 / 32
"""Requests that wait, as a share of the batch, up to which more of them make the wait longer. A
longer queue is an overload that routing cannot resolve, and to leave a warm cache makes it worse.
In simulated bursts of chats on batches of 32, mean TTFT is 12 % longer if all of them count."""

_MOST_SECONDS = 60.0
"""The longest wait. A longer one means that the engine hangs."""


class _Batch:
    """The largest batch of one engine, and how often requests end while it is full."""

    __slots__ = ("_ends", "_largest", "_readings", "_steps")

    def __init__(self, report: Report, now: float) -> None:
        self._ends = EndRate(report, now)
        self._largest = 0.0
        self._readings = 0
        self._steps = -1.0

    def read(self, report: Report, steps: float, now: float) -> float:
        """Take a reading. Return the seconds that a new request waits."""
        is_new, self._steps = steps > self._steps, steps
        running, waiting = report.running, report.load.waiting
        if running > self._largest:
            self._largest, self._readings = running, 0
        # In a smaller batch, requests end less often.
        is_large = waiting > 0 and self._largest >= _LARGE and running >= _ABOUT * self._largest
        self._ends.read(report, now, counts=is_large and self._readings > 0)
        if is_large:
            self._readings += is_new
        elif waiting:
            self._readings = 0
        if not is_large or self._readings < _ENOUGH or not self._ends.per_second:
            return 0.0
        before = min(waiting, _QUEUE_SHARE * running)
        return min((before + 1) / self._ends.per_second, _MOST_SECONDS)


class FullBatches:
    """The batches of all endpoints."""

    def __init__(self) -> None:
        self._batches: dict[str, _Batch] = {}

    def read(self, address: str, report: Report, now: float) -> float:
        """Take a reading. Return the seconds that a new request waits for a place in the batch.

        They are 0 if the batch is not full, or if the engine does not count steps and ended
        requests.
        """
        if report.steps is None or report.finished is None:
            return 0.0
        batch = self._batches.get(address)
        if batch is None:
            batch = self._batches[address] = _Batch(report, now)
        return batch.read(report, report.steps.steps, now)

    def forget(self, address: str) -> None:
        """Forget an endpoint that left or restarted."""
        self._batches.pop(address, None)
