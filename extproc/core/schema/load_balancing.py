"""Load balancing in the models document: `loadBalancing`.

Names and defaults are those of KubeAI, so that its block can be copied unchanged.
"""

from __future__ import annotations

from functools import cached_property
from typing import Literal

from pydantic import Field, model_validator

from extproc.core.schema.sessions import (
    DEFAULT_SESSION_SOURCES,
    SESSION,
    SessionKey,
    SessionSources,
    session_key,
)
from extproc.core.schema.values import HEADER_SOURCE, Items, PrefixSource, Spec

StrategyName = Literal[
    "PrefixHash",
    "PrefixCache",
    "Random",
    "RoundRobin",
    "LeastLoad",
    "LeastRequest",
    "LeastQueue",
    "LeastKVCache",
    "QueueKVCache",
    "LoraQueue",
    "LoraKVCache",
    "LowLatency",
    "Chain",
]

FilterName = Literal["LowLatency", "LoraAffinity", "LeastQueue", "LeastKVCache", "PrefixHash"]


class PrefixHashSpec(Spec):
    """Settings of PrefixHash: the source of the key and the load bound."""

    mean_load_factor: int = Field(default=125, ge=100, le=100_000)
    """The load bound of an endpoint, in percent of the mean load. Requests beyond it spill to the
    next endpoint on the ring. The mean covers the endpoints that are eligible for the request, and
    includes the request."""

    prefix_char_length: int = Field(default=100, ge=1, le=1_000_000)
    """Length of the key: the first characters (code points) of the source's text."""

    replication: int = Field(default=256, ge=1, le=4096)
    """Virtual nodes of each endpoint on the ring."""

    prefix_source: PrefixSource = "FirstUserMessage"
    """The source of the key; see [Strategies](#strategies)."""

    session_sources: SessionSources | None = None
    """Headers and body fields that may hold the session's id, for the source `Session`. The first
    one with a value wins. Default: those that current agents use, listed under
    [Strategies](#strategies)."""

    @model_validator(mode="after")
    def _session_sources_match_prefix_source(self) -> PrefixHashSpec:
        if self.session_sources is not None and self.prefix_source != SESSION:
            raise ValueError("'sessionSources' needs 'prefixSource: Session'")
        return self

    @cached_property
    def session_keys(self) -> tuple[SessionKey, ...]:
        """The sources of a session's id, in order; empty unless `prefixSource` is `Session`."""
        if self.prefix_source != SESSION:
            return ()
        return tuple(map(session_key, self.session_sources or DEFAULT_SESSION_SOURCES))

    @cached_property
    def headers(self) -> frozenset[str]:
        """The request headers that the key can come from, in lower case."""
        named = {key.header for key in self.session_keys if key.header}
        return frozenset(named if self.header is None else {self.header})

    @cached_property
    def fields(self) -> frozenset[str]:
        """The fields of the body, in addition to the prompt, that the key can come from."""
        return frozenset(key.field for key in self.session_keys if key.field)

    @cached_property
    def header(self) -> str | None:
        """The header in `prefixSource`, in lower case; None if another source is used."""
        if self.prefix_source.startswith(HEADER_SOURCE):
            return self.prefix_source.removeprefix(HEADER_SOURCE)
        return None


class FilterSpec(Spec):
    """One step of a chain. It keeps one or more of the endpoints that the previous step kept."""

    filter: FilterName
    """The kind of filter; see [Strategies](#strategies)."""

    max_queue: int | None = Field(default=None, ge=0, le=100_000)
    """The limit of waiting requests, for `LowLatency` and `LoraAffinity`. They prefer endpoints
    within it. Default: 50."""

    slack: float | None = Field(default=None, ge=0, le=100_000)
    """The accepted distance from the lowest value, for `LeastQueue` (requests) and `LeastKVCache`
    (share of the cache, 0 to 1). Default: the distance between the lowest and the highest value,
    divided by the number of endpoints."""

    @model_validator(mode="after")
    def _thresholds_match_filter(self) -> FilterSpec:
        if self.max_queue is not None and self.filter not in ("LowLatency", "LoraAffinity"):
            raise ValueError(f"the filter {self.filter} has no 'maxQueue'")
        if self.slack is not None and self.filter not in ("LeastQueue", "LeastKVCache"):
            raise ValueError(f"the filter {self.filter} has no 'slack'")
        if self.slack is not None and self.slack > 1 and self.filter == "LeastKVCache":
            raise ValueError("'slack' is a share of the cache: give a number from 0 to 1")
        return self


class SignalsSpec(Spec):
    """Scraping of vLLM's metrics, for strategies that use them."""

    interval_seconds: float = Field(default=0.2, ge=0.05, le=60)
    """Time between two scrapes of an endpoint with requests. A quarter of it counts for at most 60
    scrapes of a new endpoint, until the engine's times are known. The time is longer if there are
    so many endpoints that scraping them would take more than a few percent of a CPU core."""

    idle_interval_seconds: float = Field(default=1.0, ge=0.05, le=60)
    """Time between two scrapes of an endpoint without requests."""

    stale_after_seconds: float = Field(default=3.0, ge=0.1, le=600)
    """The age at which metrics become stale. An endpoint with stale metrics counts as average,
    with the requests that this sidecar has in flight there."""

    slow_start_seconds: float = Field(default=30.0, ge=0, le=3600)
    """Time over which a new endpoint reaches its full share of requests. Its queue and its cache
    are empty at first, so that every strategy would prefer it. The in-flight requests at which it
    counts as loaded grow from zero to the mean of the others."""

    @model_validator(mode="after")
    def _stale_after_spans_two_scrapes(self) -> SignalsSpec:
        if self.stale_after_seconds < 2 * max(self.interval_seconds, self.idle_interval_seconds):
            raise ValueError("'staleAfterSeconds' must be at least twice as long as both intervals")
        return self


class LoadBalancingSpec(Spec):
    """Load balancing of a model's requests over its endpoints."""

    strategy: StrategyName = "PrefixHash"
    """The way an endpoint is chosen; see [Strategies](#strategies)."""

    prefix_hash: PrefixHashSpec = PrefixHashSpec()
    """Settings of `PrefixHash`. In strategies that read metrics, its key breaks ties."""

    chain: Items[FilterSpec] = ()
    """The filters of the strategy `Chain`, applied in this order."""

    signals: SignalsSpec = SignalsSpec()
    """Scraping, for strategies that read vLLM's metrics and for the discovery of adapters."""

    @model_validator(mode="after")
    def _chain_matches_strategy(self) -> LoadBalancingSpec:
        if (self.strategy == "Chain") != bool(self.chain):
            raise ValueError(
                "the strategy 'Chain' needs a 'chain', and no other strategy can have one"
            )
        return self
