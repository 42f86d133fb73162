"""The filters of a chain: each keeps some of the endpoints that the previous one kept.

Their criteria and thresholds are those of the Gateway API Inference Extension's first scheduler
(`pkg/epp/scheduling/filter.go`, 2025). The published LoRA benchmarks used its chains.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from extproc.core.fleet.endpoint import Snapshot
from extproc.core.fleet.estimate import Estimate
from extproc.core.fleet.residency import Residency
from extproc.core.strategies.base import Query, Reason
from extproc.core.strategies.prefix_hash import PrefixHash

DEFAULT_MAX_QUEUE = 50
"""Waiting requests up to which affinity has priority over balance. This was the Inference
Extension's `queueingThresholdLoRA` in the published benchmarks; later it became 128."""


class Kept(NamedTuple):
    """The one or more endpoints that a filter keeps, in the given order."""

    endpoints: Sequence[Estimate]
    reason: Reason


class Filter(Protocol):
    """A criterion for better endpoints."""

    def keep(self, query: Query, snapshot: Snapshot, endpoints: Sequence[Estimate]) -> Kept:
        """Return the better ones of one or more endpoints."""
        ...


class LeastQueue:
    """The endpoints with the fewest waiting requests."""

    def __init__(self, slack: float | None = None) -> None:
        self._slack = slack

    def keep(self, query: Query, snapshot: Snapshot, endpoints: Sequence[Estimate]) -> Kept:
        return Kept(_least(endpoints, lambda e: e.queue, self._slack), Reason.LEAST_QUEUE)


class LeastKVCache:
    """The endpoints with the lowest KV cache usage."""

    def __init__(self, slack: float | None = None) -> None:
        self._slack = slack

    def keep(self, query: Query, snapshot: Snapshot, endpoints: Sequence[Estimate]) -> Kept:
        return Kept(_least(endpoints, lambda e: e.kv_usage, self._slack), Reason.LEAST_KV_CACHE)


class LowLatency:
    """The endpoints with a short queue. If there are none, those with the shortest queue.

    Later filters can then prefer an endpoint for its caches, and no request waits long.
    """

    def __init__(self, max_queue: int = DEFAULT_MAX_QUEUE) -> None:
        self._max_queue = max_queue

    def keep(self, query: Query, snapshot: Snapshot, endpoints: Sequence[Estimate]) -> Kept:
        short = [e for e in endpoints if e.queue <= self._max_queue]
        return Kept(short or _least(endpoints, lambda e: e.queue), Reason.LOW_LATENCY)


class LoraAffinity:
    """The endpoints that have the request's adapter in memory. If there are none, those with a
    free slot for it.

    Endpoints with a long queue are skipped while there are others: a popular adapter spreads, and
    an engine that hangs does not keep its adapters. The filter keeps all endpoints if none has the
    adapter or a free slot, or if the request has no adapter.
    """

    def __init__(self, residency: Residency, max_queue: int = DEFAULT_MAX_QUEUE) -> None:
        self._residency = residency
        self._max_queue = max_queue

    def keep(self, query: Query, snapshot: Snapshot, endpoints: Sequence[Estimate]) -> Kept:
        if not query.adapter:
            return Kept(endpoints, Reason.LORA_LOADED)
        has, has_room = self._residency.has, self._residency.has_room
        short = [e for e in endpoints if e.queue <= self._max_queue] or endpoints
        loaded = [e for e in short if has(e.endpoint.address, query.adapter)]
        if loaded:
            return Kept(loaded, Reason.LORA_LOADED)
        free = [e for e in short if has_room(e.endpoint.address)]
        return Kept(free or short, Reason.LORA_FREE_SLOT)


class PrefixAffinity:
    """The endpoint that `PrefixHash` chooses among the given ones.

    The filter keeps all endpoints if the request has no prefix.
    """

    def __init__(self, prefix_hash: PrefixHash) -> None:
        self._prefix_hash = prefix_hash

    def keep(self, query: Query, snapshot: Snapshot, endpoints: Sequence[Estimate]) -> Kept:
        if query.key is None:
            return Kept(endpoints, Reason.NO_PREFIX)
        loads = {e.endpoint.address: e.inflight for e in endpoints}
        bound = self._prefix_hash.bound([e.endpoint for e in endpoints], loads)
        left = {e.endpoint.address: e for e in endpoints}
        reason = Reason.PREFIX
        for endpoint in snapshot.walk(query.key, query.adapter):
            estimate = left.get(endpoint.address)
            if estimate is None:
                continue
            if bound is None or estimate.inflight <= bound.max_inflight:
                return Kept((estimate,), reason)
            reason = Reason.BOUND
        raise AssertionError("the bound is at least the mean, so one endpoint is always within it")


def _least(
    endpoints: Sequence[Estimate],
    metric: Callable[[Estimate], float],
    slack: float | None = None,
) -> list[Estimate]:
    """Return the endpoints with the lowest metric, or at most `slack` above it.

    Without a slack, it is the range of the values divided by the number of endpoints.
    """
    values = [metric(endpoint) for endpoint in endpoints]
    least = min(values)
    if slack is None:
        slack = (max(values) - least) / len(values)
    limit = least + slack
    return [e for e, value in zip(endpoints, values, strict=True) if value <= limit]
