"""The limits of requests in flight that each endpoint runs well, learned without tuning.

An engine batches requests until its KV cache or its number of sequences is exhausted, and queues
the others. So while more requests wait in its queue than come for some steps, and its batch does
not grow, the batch is full:

    limit = running + spare          spare = max(2, running / 64, those that come for some steps)

The spare requests keep the batch full between the end of a response and the step for which the
next request arrives. While the limit is reached and no more than these wait in the engine, the
limit grows with each reading: by 1/32, then by 1/16, up to 1/8. Until the batch was full once, it
grows by 1/4. Preempted requests go back to the engine's queue, so they lower the limit, too.

A reading is old when it arrives. It only changes the limit. Whether there is room for a request
depends on the requests in flight, which are known exactly at every moment, so a reading never
admits a burst. The limit does not bound the prompts that come at once; see
`extproc.core.flow_control.prompts`. Engines without metrics get a limit from their latencies
(`extproc.core.flow_control.latency_limit`).
"""

from __future__ import annotations

from collections.abc import Iterable

from extproc.core.fleet.report import Report
from extproc.core.fleet.signals import Reading, Signals
from extproc.core.flow_control.latency_limit import LatencyLimit
from extproc.core.flow_control.prompts import Prompts
from extproc.core.flow_control.steps import Steps

_QUEUE_SHARE = 1 / 64
_LEAST_QUEUE = 2.0
_LEAST = 2.0
_FIRST = 256.0
"""vLLM's default of `--max-num-seqs`."""
_FIRST_TOKENS = 512.0
"""Tokens of a prompt and its response while none are known."""
_LEAST_GROWTH = 1 / 32
_MOST_GROWTH = 1 / 8
_FIRST_GROWTH = 1 / 4
_FILLING = 0.5
"""KV cache usage from which the number of requests that fit into the cache is estimated."""
_FULLEST = 0.95
"""KV cache usage up to which requests are admitted. Those that run still grow."""
_REACHED = 0.95
"""Share of the limit that must be in flight for the limit to grow."""
_GROWING = 1.05
"""Ratio by which a batch grows between two readings if it is not full."""
_STALE_SECONDS = 2.0
"""Age from which a reading says nothing about prompts."""


class _Learned:
    """The limit of one endpoint with metrics."""

    __slots__ = ("at", "growth", "limit", "running", "waiting")

    def __init__(self, limit: float) -> None:
        self.limit = limit
        self.at = -1.0
        self.running = 0.0
        self.waiting = 0.0
        self.growth = _FIRST_GROWTH


class Limits:
    """Limits by endpoint address."""

    def __init__(self, signals: Signals, steps: Steps) -> None:
        self._steps = steps
        self._signals = signals
        self._learned: dict[str, _Learned] = {}
        self._by_latency: dict[str, LatencyLimit] = {}
        self.prompts = Prompts()
        """The prompts that the batches have not taken yet."""

    def of(self, address: str, tokens: float = 0.0, to_compute: float = 0.0) -> float:
        """Return the limit of an endpoint.

        A typical prompt has this number of tokens, and `to_compute` of them are in no cache.
        """
        reading = self._signals.latest(address)
        if reading is None or reading.report is None:
            return self._latency_limit(address).limit
        learned = self._learned.get(address)
        if learned is None:
            learned = self._learned[address] = _Learned(_first(reading.report, tokens))
        if reading.reported_at > learned.at:
            at = reading.reported_at
            if reading.report.steps is not None:
                self._steps.of(address).read(reading.report.steps, at)
            report, unseen = reading.report, reading.unseen
            self.prompts.read(address, report, at, learned.limit, to_compute, unseen)
            _learn(learned, reading, reading.report, self.prompts.usual(address))
        return learned.limit

    def takes_prompt(
        self, address: str, tokens: float, now: float, *, is_shared: bool = True
    ) -> bool:
        """Return True if an endpoint may get another prompt with this number of tokens."""
        reading = self._signals.latest(address)
        if reading is None or reading.report is None:
            return True
        is_known = now < reading.reported_at + _STALE_SECONDS
        return not is_known or self.prompts.has_room(address, tokens, is_shared=is_shared)

    def responded(self, address: str, seconds: float, inflight: int) -> None:
        """Record the time from the decision to the beginning of the response."""
        reading = self._signals.latest(address)
        if reading is None or reading.report is None:
            self._latency_limit(address).record(seconds, inflight)

    def keep_only(self, addresses: Iterable[str]) -> None:
        """Forget all other endpoints."""
        kept = set(addresses)
        for address in self._learned.keys() - kept:
            del self._learned[address]
        for address in self._by_latency.keys() - kept:
            del self._by_latency[address]
        self.prompts.keep_only(kept)

    def _latency_limit(self, address: str) -> LatencyLimit:
        limit = self._by_latency.get(address)
        if limit is None:
            limit = self._by_latency[address] = LatencyLimit()
        return limit


def _first(report: Report, tokens: float) -> float:
    """Return the requests whose tokens fit into the KV cache, up to vLLM's default."""
    capacity = report.cache_tokens
    if not capacity:
        return _FIRST
    return max(_LEAST, min(_FIRST, capacity / (tokens or _FIRST_TOKENS)))


def _learn(learned: _Learned, reading: Reading, report: Report, usual: float) -> None:
    """Take a new scrape. `usual` requests may wait although the batch has room."""
    waiting, running = report.load.waiting, report.running
    stuck = min(waiting, learned.waiting) > usual and running <= learned.running * _GROWING + 1
    spare = max(_LEAST_QUEUE, running * _QUEUE_SHARE, usual)
    if stuck and running > 0:
        learned.limit = max(_LEAST, running + spare)
        learned.growth = _LEAST_GROWTH
    elif waiting <= spare and reading.ours >= learned.limit * _REACHED:
        learned.limit = max(learned.limit * (1 + learned.growth), learned.limit + 1)
        if learned.growth < _MOST_GROWTH:
            learned.growth *= 2
    elif learned.growth < _FIRST_GROWTH:
        learned.growth = _LEAST_GROWTH
    usage = report.load.kv_usage
    if usage > _FILLING:
        learned.limit = max(_LEAST, min(learned.limit, _FULLEST * running / usage))
    learned.at = reading.reported_at
    learned.running, learned.waiting = running, waiting
