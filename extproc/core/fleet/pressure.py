"""The load of endpoints that no known request causes, by their own metrics.

A sidecar sees its own requests start and end, and those of sidecars that share their state. Only
the engine's metrics, a few times a second, show other requests, the engine's queue and its KV
cache. This module converts them to the units that a strategy adds to the load that it knows:
requests, and tokens to compute. It also writes the room in the cache, in tokens, and its usage.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import exp, inf
from typing import NamedTuple

from extproc.core.fleet.cache_sizes import DEFAULT_TOKENS
from extproc.core.fleet.totals import Totals
from extproc.core.fleet.weights import Weights

_FILLING = 0.7
"""The KV cache usage above which it counts as load, because running requests still grow."""

_USABLE = 0.9
"""The share of the KV cache that a request may fill, because running requests still grow."""

_ALONE = 0.05
"""A smaller share of requests from other sidecars counts as 0, because metrics are late."""

_DECAY = 0.99
"""The weight that earlier samples keep with each new one: about a hundred count."""

_MEAN_SECONDS = 10.0
"""Time over which samples are averaged. If sidecars counted the latest one alone, all of them would
send to the endpoint that had the fewest requests, until the next sample. With four sidecars that
share nothing, that made mean TTFT 3 % longer on average of 70 random trials, and up to 81 %."""

_FEW = 0.1
"""Fewer requests than this on average count as none, because metrics are late."""

_BEFORE_PLACE = 0.5
"""Share that counts of the wait for a place in a full batch. The prompts of own requests that wait
are in the backlog, too."""

_STALE_SECONDS = 10.0
"""Age of a sample from which `Pressure.others` no longer counts it. With 2,000 endpoints, samples
are that far apart. Otherwise an endpoint whose metrics fail could stay full for flow control."""


class ObservedLoad(NamedTuple):
    """A sample of an endpoint's load."""

    waiting: float
    running: float
    kv_usage: float

    ours: float
    """Those of the waiting and running requests that the sidecar knows."""

    others_in_prefill: float
    """Other requests that have not produced a first token."""

    cache_tokens: float | None = None
    """The size of the KV cache; None if unknown."""

    is_blocked: bool = False
    """True if the queue does not move, so that the KV cache counts as full
    (`extproc.core.fleet.blocked_queue`)."""

    before_place: float = 0.0
    """Prompt tokens that the endpoint could compute until its full batch has a place for a new
    request (`extproc.core.fleet.full_batches`)."""


@dataclass(slots=True)
class _Others:
    """Other requests in a sample, without those that became known since."""

    at: float
    weight: float
    """The weight of this sample in the means."""

    requests: float
    mean_requests: float
    queue: float
    """Requests that the engine's queue counts as."""

    in_prefill: float
    tokens_each: float
    mean_kv_usage: float

    @property
    def counted(self) -> float:
        """The requests that count."""
        return self.queue + (self.mean_requests if self.mean_requests >= _FEW else 0.0)


class Pressure:
    """Writes the load of others, and the room in the caches, to the totals."""

    def __init__(self, clock: Callable[[], float], weights: Weights, totals: Totals) -> None:
        self._clock = clock
        self._weights = weights
        self._totals = totals
        self._others: dict[str, _Others] = {}
        self._all = 0.0
        self._ours = 0.0

    @property
    def share_of_others(self) -> float:
        """Share of other requests among the recent ones on all endpoints; 0 if unknown or small."""
        others = 1 - self._ours / self._all if self._all else 0.0
        return others if others > _ALONE else 0.0

    def record(self, address: str, load: ObservedLoad, mean_prompt: float, now: float) -> None:
        """Take an endpoint's latest sample. `mean_prompt` tokens are computed per prompt."""
        there = load.waiting + load.running
        self._all = self._all * _DECAY + there
        self._ours = self._ours * _DECAY + min(load.ours, there)
        weights = self._weights
        # A queue longer than the batch is an overload that routing cannot resolve.
        queue = weights.waiting * min(load.waiting, load.running)
        others = max(0.0, there - load.ours)
        filled = max(0.0, load.kv_usage - _FILLING) / (1 - _FILLING)
        size = DEFAULT_TOKENS if load.cache_tokens is None else load.cache_tokens
        full = weights.full * size * (1.0 if load.is_blocked else filled)
        full = max(full, _BEFORE_PLACE * load.before_place)
        tokens_each = weights.others * mean_prompt
        room = inf
        if load.cache_tokens is not None:
            room = (_USABLE - load.kv_usage) * load.cache_tokens
        kept, mean, kv_usage = 0.0, others, load.kv_usage
        before = self._others.get(address)
        if before is not None:
            kept = exp((before.at - now) / _MEAN_SECONDS)
            mean += kept * (before.mean_requests - mean)
            kv_usage += kept * (before.mean_kv_usage - kv_usage)
        in_prefill = load.others_in_prefill
        found = self._others[address] = _Others(
            now, 1 - kept, others, mean, queue, in_prefill, tokens_each, kv_usage
        )
        backlog = in_prefill * tokens_each + full
        self._write(address, found.counted, backlog, room, kv_usage)

    def recognize(self, address: str, sent_at: float) -> None:
        """Record that a request became known after it was sent, so it may be in the sample."""
        others = self._others.get(address)
        if others is None or sent_at >= others.at:
            return
        total = self._totals.of(address)
        known = min(others.requests, 1.0)
        others.requests -= known
        self._ours += known
        weight = max(others.weight, 1 - exp((sent_at - others.at) / _MEAN_SECONDS))
        others.mean_requests = max(0.0, others.mean_requests - weight * known)
        total.other_requests = others.counted
        computed = min(others.in_prefill, 1.0)
        others.in_prefill -= computed
        total.other_backlog = max(0.0, total.other_backlog - computed * others.tokens_each)
        total.add_up()

    def others(self, address: str) -> float:
        """Return the other requests on an endpoint, as far as its latest sample shows them.

        An old sample shows none.
        """
        others = self._others.get(address)
        if others is None or not others.requests:
            return 0.0
        return others.requests if others.at >= self._clock() - _STALE_SECONDS else 0.0

    def forget(self, address: str) -> None:
        """Forget an endpoint that left or restarted."""
        if self._others.pop(address, None) is not None:
            self._write(address, 0.0, 0.0, inf, 0.0)

    def expire(self, oldest: float) -> None:
        """Forget the samples from before that time."""
        for address in [a for a, one in self._others.items() if one.at < oldest]:
            self.forget(address)

    def _write(
        self, address: str, requests: float, backlog: float, room: float, kv_usage: float
    ) -> None:
        total = self._totals.of(address)
        total.other_requests, total.other_backlog = requests, backlog
        total.room, total.kv_usage = room, kv_usage
        total.add_up()
