"""The filters of a chain: each keeps some of the endpoints that the one before it left.

What they compare and how they cut are those of the Gateway API Inference
Extension's first scheduler (`pkg/epp/scheduling/filter.go`, 2025), whose chains the
published LoRA benchmarks ran.
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
"""Requests waiting on an endpoint up to which affinity goes before balance: what the Inference
Extension's `queueingThresholdLoRA` was when the published benchmarks ran (128 later)."""


class Kept(NamedTuple):
    """What a filter leaves, in the order given: one endpoint at least."""

    endpoints: Sequence[Estimate]
    reason: Reason


class Filter(Protocol):
    """One idea of what makes an endpoint better."""

    def keep(self, query: Query, snapshot: Snapshot, endpoints: Sequence[Estimate]) -> Kept:
        """The better ones of these, of which there is one at least."""
        ...


class LeastQueue:
    """Those with the fewest requests waiting."""

    def __init__(self, slack: float | None = None) -> None:
        self._slack = slack

    def keep(self, query: Query, snapshot: Snapshot, endpoints: Sequence[Estimate]) -> Kept:
        return Kept(_least(endpoints, lambda e: e.queue, self._slack), Reason.LEAST_QUEUE)


class LeastKVCache:
    """Those whose KV cache has the most room."""

    def __init__(self, slack: float | None = None) -> None:
        self._slack = slack

    def keep(self, query: Query, snapshot: Snapshot, endpoints: Sequence[Estimate]) -> Kept:
        return Kept(_least(endpoints, lambda e: e.kv_usage, self._slack), Reason.LEAST_KV_CACHE)


class LowLatency:
    """Those with a short queue; where there is none, those with the shortest.

    What follows may then prefer an endpoint for its caches without making anybody
    wait long for it.
    """

    def __init__(self, max_queue: int = DEFAULT_MAX_QUEUE) -> None:
        self._max_queue = max_queue

    def keep(self, query: Query, snapshot: Snapshot, endpoints: Sequence[Estimate]) -> Kept:
        short = [e for e in endpoints if e.queue <= self._max_queue]
        return Kept(short or _least(endpoints, lambda e: e.queue), Reason.LOW_LATENCY)


class LoraAffinity:
    """Those that have the request's adapter in memory, else those with room for it.

    One with a long queue is passed over as long as there is another: a popular adapter
    spreads, and an engine that hangs does not keep its adapters. Keeps all where none has
    the adapter or room for it, and for requests without an adapter.
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
    """The one where the request's prefix is at home, by `PrefixHash` among those that are left.

    Keeps all for a request without a prefix.
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
            if bound is None or estimate.inflight <= bound.most:
                return Kept((estimate,), reason)
            reason = Reason.BOUND
        raise AssertionError("the bound is not below the mean, so one is always within it")


def _least(
    endpoints: Sequence[Estimate],
    figure: Callable[[Estimate], float],
    slack: float | None = None,
) -> list[Estimate]:
    """Those within `slack` of the least; None: in the first n-th of the range of n endpoints."""
    figures = [figure(endpoint) for endpoint in endpoints]
    least = min(figures)
    if slack is None:
        slack = (max(figures) - least) / len(figures)
    limit = least + slack
    return [e for e, value in zip(endpoints, figures, strict=True) if value <= limit]
