"""What every strategy is: an order of preference over a snapshot, found lazily."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import ClassVar, NamedTuple, Protocol

from extproc.core.fleet.endpoint import Endpoint, Snapshot
from extproc.core.request.blocks import BYTES_PER_TOKEN, Prompt


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

    CACHED = "cached"
    """Its cache has as much of the prompt as any other's, and it is not too busy."""

    SPARED = "spared"
    """Others have more of the prompt in their caches, and so much more to do that it is sooner
    computed here; or other sidecars have probably had it computed here."""

    COLD = "cold"
    """No cache is known to have any of the prompt: of those with the least to do the first on the
    ring, which is where other sidecars have probably sent it."""

    RESPONSE_ID = "response_id"
    """It made the stored response that the request refers to."""

    ONLY_ONE = "only_one"
    """There was no other."""


class Query(NamedTuple):
    """What a strategy may know of a request."""

    adapter: str = ""
    """The LoRA adapter it needs, or nothing."""

    key: int | None = None
    """XXH64 of adapter and prefix; None where there is no prefix."""

    prompt: Prompt | None = None
    """For strategies that read prompts."""

    bytes_per_token: float = BYTES_PER_TOKEN
    """Of the model's prompts."""

    session: bool = False
    """The key is a session's own id, and not a part of its prompt."""


class Prediction(NamedTuple):
    """How much of a prompt an endpoint will find in its cache, judged beforehand."""

    prompt_tokens: float
    """Of the whole prompt, by its bytes."""

    cached_tokens: float
    """Of those, probably in the cache."""

    @property
    def hit(self) -> float:
        """The share that is cached, 0 to 1."""
        return self.cached_tokens / self.prompt_tokens if self.prompt_tokens else 0.0


class Candidate(NamedTuple):
    """An endpoint in the order of preference."""

    endpoint: Endpoint
    hops: int
    """Eligible endpoints before it: on the ring for PrefixHash, else in the order."""
    reason: Reason
    prediction: Prediction | None = None
    """Where the strategy has an idea of what is cached."""


class Strategy(Protocol):
    """An order of preference among a snapshot's endpoints for one request."""

    reads_signals: ClassVar[bool] = False
    """Whether it wants to know what endpoints say of themselves."""

    reads_prompts: ClassVar[bool] = False
    """Whether it wants to see all of the prompt that there is, and not only its key."""

    def rank(
        self, query: Query, snapshot: Snapshot, loads: Mapping[str, int]
    ) -> Iterator[Candidate]:
        """Yields every eligible endpoint once, the best first.

        The first is the decision, the second the fallback; callers that need no
        more take no more, so an implementation works lazily. `loads` are requests
        in flight by address, without this one, and do not change meanwhile.
        """
        ...

    def record_choice(self, query: Query, endpoint: Endpoint) -> None:
        """The request goes there; for strategies that remember."""
        return
