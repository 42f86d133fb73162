"""The protocol of the strategies: a lazy order of preference over the endpoints of a snapshot."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import StrEnum
from math import inf
from typing import ClassVar, NamedTuple, Protocol

from extproc.core.fleet.endpoint import Endpoint, Snapshot
from extproc.core.fleet.sent_request import NOTHING_SENT, SentRequest
from extproc.core.request.blocks import BYTES_PER_TOKEN, Prompt


class Reason(StrEnum):
    """The reason for an endpoint's rank. Access logs contain it."""

    PREFIX = "prefix"
    """The first endpoint clockwise from the key: the prefix's home endpoint."""

    BOUND = "bound"
    """The next endpoint on the ring within the load bound. Those before it exceed the bound."""

    OVER_BOUND = "over_bound"
    """It exceeds the load bound. Such an endpoint is only a fallback."""

    NO_PREFIX = "no_prefix"
    """The request has no prefix. The endpoint is one with the least load."""

    LEAST_LOAD = "least_load"
    """It has the fewest requests in flight."""

    ROUND_ROBIN = "round_robin"
    """It is the next in turn."""

    RANDOM = "random"
    """It was chosen at random."""

    LEAST_REQUEST = "least_request"
    """It has fewer requests in flight than the other endpoint that was drawn at random."""

    LOW_LATENCY = "low_latency"
    """It is the only eligible endpoint with a short queue."""

    LORA_LOADED = "lora_loaded"
    """It is the only one that probably has the adapter in memory."""

    LORA_FREE_SLOT = "lora_free_slot"
    """It is the only one with a free slot for the adapter."""

    LEAST_QUEUE = "least_queue"
    """It has the fewest waiting requests."""

    LEAST_KV_CACHE = "least_kv_cache"
    """It has the lowest usage of its KV cache."""

    RING = "ring"
    """It is the first on the ring among equal endpoints."""

    CACHED = "cached"
    """No other cache holds more of the prompt, and the endpoint is not too busy."""

    SPARED = "spared"
    """Other caches hold more of the prompt, but those endpoints are so busy that this one is
    faster, or have to load the adapter. Or other sidecars have probably sent the prompt here."""

    COLD = "cold"
    """No cache is known to hold any of the prompt. The endpoint is the first on the ring among the
    least busy ones, because other sidecars choose the same."""

    RESPONSE_ID = "response_id"
    """It holds the stored response that the request refers to."""

    ONLY_ONE = "only_one"
    """It is the only one."""


class Query(NamedTuple):
    """The properties of a request that strategies use."""

    adapter: str = ""
    """The LoRA adapter that the request needs; empty if none."""

    key: int | None = None
    """XXH64 of adapter and prefix; None without a prefix."""

    prompt: Prompt | None = None
    """The prompt, for strategies that read prompts."""

    bytes_per_token: float = BYTES_PER_TOKEN
    """Average in the model's prompts."""

    session: bool = False
    """True if the key is a session's id instead of a part of the prompt."""


class Prediction(NamedTuple):
    """The predicted cache hit of a prompt on an endpoint."""

    prompt_tokens: float
    """Tokens in the whole prompt, estimated from its bytes."""

    cached_tokens: float
    """Tokens of it that are probably in the cache."""

    @property
    def hit(self) -> float:
        """The cached share of the prompt, from 0 to 1."""
        return self.cached_tokens / self.prompt_tokens if self.prompt_tokens else 0.0


class Candidate(NamedTuple):
    """An endpoint at its rank in the order of preference."""

    endpoint: Endpoint
    hops: int
    """Number of eligible endpoints before it: on the ring for PrefixHash, else in the order."""
    reason: Reason
    prediction: Prediction | None = None
    """The predicted cache hit, if the strategy makes predictions."""


class Strategy(Protocol):
    """An order of preference among a snapshot's endpoints for one request."""

    reads_signals: ClassVar[bool] = False
    """True if the strategy needs the endpoints' metrics."""

    reads_prompts: ClassVar[bool] = False
    """True if the strategy needs the whole prompt, and not only its key."""

    def rank(
        self, query: Query, snapshot: Snapshot, loads: Mapping[str, int]
    ) -> Iterator[Candidate]:
        """Yield every eligible endpoint once, the best first.

        The first is the decision and the second the fallback. Callers rarely need more, so an
        implementation computes them lazily. `loads` are the requests in flight by address, without
        this one. They do not change during the iteration.
        """
        ...

    def preview(self) -> Strategy:
        """Return a strategy that ranks as this one would now, without an effect on this one."""
        return self

    def describe(self, query: Query, chosen: Candidate) -> SentRequest:
        """Return what to record about the request, which goes to the chosen candidate.

        The caller has just taken that candidate from `rank`.
        """
        return NOTHING_SENT

    def homes(self, query: Query, snapshot: Snapshot) -> tuple[str, ...]:
        """Return the addresses of the endpoints where the request is warm, for flow control.

        It is empty if it does not matter which endpoint serves the request.
        """
        return ()

    @property
    def crowd(self) -> float:
        """The most requests that flow control lets wait for one warm endpoint.

        It is a multiple of the mean number of requests that wait for an endpoint; further ones go
        to other endpoints. It is infinite for a strategy that itself copies popular prefixes to
        several endpoints.
        """
        return inf
