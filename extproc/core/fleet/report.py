"""One reading of an endpoint: its load, its caches and its counters."""

from __future__ import annotations

from typing import NamedTuple

MOST_REQUESTS = 1_000_000
"""The most waiting or running requests of one endpoint that are plausible. A larger number would
outweigh all other endpoints."""

_FULLEST_CACHE = 1.05
"""The highest plausible share, which may be rounded. A higher number may be in percent."""


class Load(NamedTuple):
    """The queue and the cache usage of an endpoint."""

    waiting: float
    """Requests in the endpoint's queue."""

    kv_usage: float
    """Share of the KV cache that running requests hold, 0 to 1."""


def sound_load(waiting: float, kv_usage: float) -> Load | None:
    """Return the load with these numbers; None if they are not plausible."""
    # NaN fails each comparison.
    if not (0 <= waiting <= MOST_REQUESTS and 0 <= kv_usage <= _FULLEST_CACHE):
        return None
    return Load(waiting, min(kv_usage, 1.0))


class StepTotals(NamedTuple):
    """Counters of an engine's steps since it started, all of the same moment."""

    steps: float
    """Steps that produced tokens."""

    computed: float
    """Prompt tokens that these steps computed."""

    seconds: float
    """Sum of the times between a request's tokens."""

    times: float
    """Number of these times: for each step, one for each request that got a further token."""


class PrefillTotals(NamedTuple):
    """Counters of prompts since the engine started, all of the same moment."""

    prompts: float
    """Number of prompts."""

    seconds: float
    """Sum of the times until their first tokens, with or without the wait in the queue."""

    tokens: float
    """Sum of their tokens that were not in the cache."""


class Report(NamedTuple):
    """The values of one scrape of an endpoint's metrics."""

    load: Load
    running: float
    """Requests in the batch."""

    max_loras: int | None = None
    """Adapters that one batch can have; None if LoRA is off."""

    running_adapters: frozenset[str] = frozenset()
    """Adapters that running requests use."""

    waiting_adapters: frozenset[str] = frozenset()
    """Adapters that waiting requests need."""

    block_size: int | None = None
    """Tokens of a block of the KV cache."""

    blocks: int | None = None
    """Blocks of the KV cache, of all engines together."""

    prompt_tokens: float | None = None
    """Prompt tokens of all requests since the engine started."""

    cached_tokens: float | None = None
    """Those of `prompt_tokens` that the engine found in its caches, also outside the GPU."""

    first_tokens: float | None = None
    """Requests since the engine started that have produced a first token."""

    finished: float | None = None
    """Requests since the engine started that have ended. vLLM does not count those whose clients
    left."""

    preemptions: float | None = None
    """Times since the engine started that it took a request out of the batch for want of room."""

    first_token_seconds: float | None = None
    """Sum of the times to first token of `first_tokens`."""

    steps: StepTotals | None = None
    """The engine's steps; None if it does not count them."""

    prefills: PrefillTotals | None = None
    """The prompts of finished requests, from their first steps; None if the engine does not count
    their times."""

    responded_tokens: float | None = None
    """Prompt tokens of the requests in `first_tokens`, also those from caches."""

    kv_tokens: int | None = None
    """Tokens of the KV cache, if the engine gives them itself. In hybrid models, the tokens of a
    request fill blocks of several groups of layers, so fewer tokens fit than blocks suggest."""

    @property
    def cache_tokens(self) -> int | None:
        """The size of the KV cache on the GPU; None if the engine does not say."""
        if self.kv_tokens is not None:
            return self.kv_tokens
        if self.blocks is None or self.block_size is None:
            return None
        return self.blocks * self.block_size

    @property
    def computed_tokens(self) -> float | None:
        """Prompt tokens that the engine did not find in its cache; None if it does not say."""
        if self.prompt_tokens is None or self.cached_tokens is None:
            return None
        return self.prompt_tokens - self.cached_tokens
