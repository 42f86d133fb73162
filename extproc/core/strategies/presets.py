"""The strategies that are chains with a name."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random

from extproc.core.fleet.signals import Signals
from extproc.core.schema import FilterSpec, LoadBalancingSpec, StrategyName
from extproc.core.strategies.chain import Chain
from extproc.core.strategies.filters import (
    DEFAULT_MAX_QUEUE,
    Filter,
    LeastKVCache,
    LeastQueue,
    LoraAffinity,
    LowLatency,
    PrefixAffinity,
)
from extproc.core.strategies.least_load import LeastLoad
from extproc.core.strategies.prefix_hash import PrefixHash

LEAST_QUEUE = FilterSpec(filter="LeastQueue")
LEAST_KV_CACHE = FilterSpec(filter="LeastKVCache")
LORA_AFFINITY = FilterSpec(filter="LoraAffinity")
LOW_LATENCY = FilterSpec(filter="LowLatency")

PRESETS: Mapping[StrategyName, tuple[FilterSpec, ...]] = {
    "LeastQueue": (LEAST_QUEUE,),
    "LeastKVCache": (LEAST_KV_CACHE,),
    "QueueKVCache": (LEAST_QUEUE, LEAST_KV_CACHE),
    "LoraQueue": (LORA_AFFINITY, LEAST_QUEUE),
    "LoraKVCache": (LORA_AFFINITY, LEAST_KV_CACHE),
    "LowLatency": (LOW_LATENCY, LORA_AFFINITY, LEAST_QUEUE, LEAST_KV_CACHE),
}
"""The filters of each strategy. They are the chains of the published LoRA benchmarks."""


def chain(
    filters: tuple[FilterSpec, ...], spec: LoadBalancingSpec, signals: Signals, rng: Random
) -> Chain:
    """Build a chain of filters."""
    built = [filter_of(each, spec, signals, rng) for each in filters]
    return Chain(built, signals, spec.signals, rng)


def filter_of(wanted: FilterSpec, spec: LoadBalancingSpec, signals: Signals, rng: Random) -> Filter:
    """Build one filter of a chain."""
    max_queue = DEFAULT_MAX_QUEUE if wanted.max_queue is None else wanted.max_queue
    match wanted.filter:
        case "LowLatency":
            return LowLatency(max_queue)
        case "LoraAffinity":
            return LoraAffinity(signals.residency, max_queue)
        case "LeastQueue":
            return LeastQueue(wanted.slack)
        case "LeastKVCache":
            return LeastKVCache(wanted.slack)
        case "PrefixHash":
            return PrefixAffinity(PrefixHash(spec.prefix_hash.mean_load_factor, LeastLoad(rng)))
