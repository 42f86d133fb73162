"""How a model's endpoints share its requests: `loadBalancing`.

Names and defaults are KubeAI's: its block can be pasted as it is.
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
    """How PrefixHash reads the key and bounds the load."""

    mean_load_factor: int = Field(default=125, ge=100, le=100_000)
    """Percent of the mean load that an endpoint may carry before requests move on along the ring.
    The mean is that of the endpoints which could serve the request, the request included."""

    prefix_char_length: int = Field(default=100, ge=1, le=1_000_000)
    """Characters (code points) of the source's text that make the key."""

    replication: int = Field(default=256, ge=1, le=4096)
    """Places of each endpoint on the ring."""

    prefix_source: PrefixSource = "FirstUserMessage"
    """What makes the key."""

    session_sources: SessionSources | None = None
    """For the source `Session`: where to look for a session's id, the first that has a value wins.
    Where it is not given: the places where today's agents put it, listed below."""

    @model_validator(mode="after")
    def _reads_sessions_if_it_lists_sources(self) -> PrefixHashSpec:
        if self.session_sources is not None and self.prefix_source != SESSION:
            raise ValueError("'sessionSources' means nothing without 'prefixSource: Session'")
        return self

    @cached_property
    def session_keys(self) -> tuple[SessionKey, ...]:
        """The places of a session's id, in order; none where the source is another."""
        if self.prefix_source != SESSION:
            return ()
        return tuple(map(session_key, self.session_sources or DEFAULT_SESSION_SOURCES))

    @cached_property
    def headers(self) -> frozenset[str]:
        """The headers that the key may be read from, in lower case."""
        named = {key.header for key in self.session_keys if key.header}
        return frozenset(named if self.header is None else {self.header})

    @cached_property
    def fields(self) -> frozenset[str]:
        """The body's own fields, beside the prompt, that the key may be read from."""
        return frozenset(key.field for key in self.session_keys if key.field)

    @cached_property
    def header(self) -> str | None:
        """The header to read the key from, in lower case, where the source is one."""
        if self.prefix_source.startswith(HEADER_SOURCE):
            return self.prefix_source.removeprefix(HEADER_SOURCE)
        return None


class FilterSpec(Spec):
    """One step of a chain: it passes on some of the endpoints that the step before it left, and
    one at least.
    """

    filter: FilterName
    """What it keeps."""

    max_queue: int | None = Field(default=None, ge=0, le=100_000)
    """Of `LowLatency` and `LoraAffinity`: requests waiting on an endpoint at most, as long as there
    is another. 50 where it is not given."""

    slack: float | None = Field(default=None, ge=0, le=100_000)
    """Of `LeastQueue` (requests) and `LeastKVCache` (share of the cache, 0 to 1): how far above
    the least an endpoint may be and still be kept. Where it is not given: the distance from the
    least to the most, divided by the number of endpoints."""

    @model_validator(mode="after")
    def _has_only_its_own_thresholds(self) -> FilterSpec:
        if self.max_queue is not None and self.filter not in ("LowLatency", "LoraAffinity"):
            raise ValueError(f"'maxQueue' means nothing to {self.filter}")
        if self.slack is not None and self.filter not in ("LeastQueue", "LeastKVCache"):
            raise ValueError(f"'slack' means nothing to {self.filter}")
        if self.slack is not None and self.slack > 1 and self.filter == "LeastKVCache":
            raise ValueError("'slack' is a share of the cache: from 0 to 1")
        return self


class SignalsSpec(Spec):
    """How vLLM's own metrics are read, for strategies that use them."""

    interval_seconds: float = Field(default=0.2, ge=0.05, le=60)
    """Between two readings of an endpoint that has requests. Longer where there are so many
    endpoints that reading them would cost the sidecar more than a few percent of a core."""

    idle_interval_seconds: float = Field(default=1.0, ge=0.05, le=60)
    """The same while it has none."""

    stale_after_seconds: float = Field(default=3.0, ge=0.1, le=600)
    """What is older than this is not believed: the endpoint then counts as an average one with
    the requests that this sidecar has in flight there."""

    slow_start_seconds: float = Field(default=30.0, ge=0, le=3600)
    """How long a new endpoint, which has nothing waiting and nothing cached, is held back: the
    requests it may have in flight before it counts as loaded grow from none to the mean of the
    others over this time."""

    @model_validator(mode="after")
    def _is_stale_only_after_a_missed_reading(self) -> SignalsSpec:
        if self.stale_after_seconds < 2 * max(self.interval_seconds, self.idle_interval_seconds):
            raise ValueError("'staleAfterSeconds' must be twice as long as both intervals")
        return self


class LoadBalancingSpec(Spec):
    """How a model's endpoints share its requests."""

    strategy: StrategyName = "PrefixHash"
    """How an endpoint is chosen."""

    prefix_hash: PrefixHashSpec = PrefixHashSpec()
    """For the strategy `PrefixHash`; the key breaks ties in all others that read signals."""

    chain: Items[FilterSpec] = ()
    """The filters of the strategy `Chain`, applied in this order."""

    signals: SignalsSpec = SignalsSpec()
    """For strategies that read vLLM's metrics, and for the discovery of adapters."""

    @model_validator(mode="after")
    def _has_a_chain_where_it_is_used(self) -> LoadBalancingSpec:
        if (self.strategy == "Chain") != bool(self.chain):
            raise ValueError("the strategy 'Chain' needs a 'chain', and only it reads one")
        return self
