"""The load balancing strategies: one module each, all with the protocol `Strategy`."""

from __future__ import annotations

from random import Random

from extproc.core.fleet.signals import Signals
from extproc.core.schema import LoadBalancingSpec
from extproc.core.strategies.base import Candidate, Prediction, Query, Reason, Strategy
from extproc.core.strategies.least_load import LeastLoad
from extproc.core.strategies.least_request import LeastRequest
from extproc.core.strategies.prefix_cache import PrefixCache
from extproc.core.strategies.prefix_hash import PrefixHash
from extproc.core.strategies.presets import PRESETS, chain
from extproc.core.strategies.random_choice import RandomChoice
from extproc.core.strategies.round_robin import RoundRobin

__all__ = ["Candidate", "Prediction", "Query", "Reason", "Strategy", "build"]


def build(spec: LoadBalancingSpec, rng: Random, signals: Signals) -> Strategy:
    """Build a model's strategy. `rng` breaks ties and makes random choices."""
    match spec.strategy:
        case "PrefixHash":
            return PrefixHash(spec.prefix_hash.mean_load_factor, LeastLoad(rng))
        case "PrefixCache":
            by_header = spec.prefix_hash.header is not None
            return PrefixCache(signals, spec.signals, rng, by_header=by_header)
        case "LeastLoad":
            return LeastLoad(rng)
        case "RoundRobin":
            return RoundRobin()
        case "Random":
            return RandomChoice(rng)
        case "LeastRequest":
            return LeastRequest(rng)
        case "Chain":
            return chain(spec.chain, spec, signals, rng)
        case preset:
            return chain(PRESETS[preset], spec, signals, rng)
