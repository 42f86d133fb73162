"""Published rules for routing by prefix caches, to be compared with the product's own.

Only the laboratory knows them. Each has the constants it was published with.
"""

from __future__ import annotations

from random import Random

from extproc.core.fleet.signals import Signals
from extproc.core.schema import LoadBalancingSpec
from extproc.core.strategies import Strategy
from extproc.lab.published_rules.aibrix import AIBrix
from extproc.lab.published_rules.cache_aware import CacheAware
from extproc.lab.published_rules.lmetric import LMetric
from extproc.lab.published_rules.sticky import Sticky

_PEAK = 4_400.0
"""Prompt tokens that an engine computes in a second where nobody says: an L4 with a model of 8B."""

_NAMES = (CacheAware.__name__, AIBrix.__name__, LMetric.__name__, Sticky.__name__)


def names() -> tuple[str, ...]:
    """All of them."""
    return _NAMES


def build(
    name: str, spec: LoadBalancingSpec, rng: Random, signals: Signals, peak: float = _PEAK
) -> Strategy:
    """The rule of this name; nothing of `spec` is for it.

    `peak` is the rate at which an engine computes prompts, which one of them wants measured.
    """
    match name:
        case "CacheAware":
            return CacheAware(signals, rng)
        case "AIBrix":
            return AIBrix(signals, rng)
        case "LMetric":
            return LMetric(signals, rng)
        case "Sticky":
            return Sticky(signals, rng, peak)
    raise ValueError(f"there is no rule {name!r}; there are {', '.join(_NAMES)}")
