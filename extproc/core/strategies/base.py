"""What every strategy is: an order of preference over a snapshot, found lazily."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import ClassVar, NamedTuple, Protocol

from extproc.core.endpoint import Endpoint, Snapshot


class Reason(StrEnum):
    """Why an endpoint stands where it does in the order; shown in access logs."""

    PREFIX = "prefix"
    """The first on the ring after the key: where this prefix is at home."""

    BOUND = "bound"
    """The next on the ring within the load bound; those before it carry too much."""

    OVER_BOUND = "over_bound"
    """Carries more than the bound allows: only ever a fallback."""

    NO_PREFIX = "no_prefix"
    """The request has no prefix to follow, so the least loaded."""

    LEAST_LOAD = "least_load"
    """The fewest requests in flight."""

    ROUND_ROBIN = "round_robin"
    """Its turn."""

    RANDOM = "random"
    """Chance."""

    LEAST_REQUEST = "least_request"
    """Fewer requests in flight than the other one that was drawn."""

    LOW_LATENCY = "low_latency"
    """Of those that could serve it the only one with a short queue."""

    LORA_LOADED = "lora_loaded"
    """The only one that probably has the adapter in memory."""

    LORA_FREE_SLOT = "lora_free_slot"
    """The only one with room for the adapter."""

    LEAST_QUEUE = "least_queue"
    """The fewest requests waiting."""

    LEAST_KV_CACHE = "least_kv_cache"
    """The most room in its KV cache."""

    RING = "ring"
    """The first on the ring among equals."""

    ONLY_ONE = "only_one"
    """There was no other."""


class Query(NamedTuple):
    """What a strategy may know of a request."""

    adapter: str = ""
    """The LoRA adapter it needs, or nothing."""

    key: int | None = None
    """XXH64 of adapter and prefix; None where there is no prefix."""


class Candidate(NamedTuple):
    """An endpoint in the order of preference."""

    endpoint: Endpoint
    hops: int
    """Eligible endpoints before it: on the ring for PrefixHash, else in the order."""
    reason: Reason


class Strategy(Protocol):
    """An order of preference among a snapshot's endpoints for one request."""

    reads_signals: ClassVar[bool] = False
    """Whether it wants to know what endpoints say of themselves."""

    def rank(
        self, query: Query, snapshot: Snapshot, loads: Mapping[str, int]
    ) -> Iterator[Candidate]:
        """Yields every eligible endpoint once, the best first.

        The first is the decision, the second the fallback; callers that need no
        more take no more, so an implementation works lazily. `loads` are requests
        in flight by address, without this one, and do not change meanwhile.
        """
        ...

    def chosen(self, query: Query, endpoint: Endpoint) -> None:
        """The request goes there; for strategies that remember."""
        return
