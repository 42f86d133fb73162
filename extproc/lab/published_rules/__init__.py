"""Published routing rules for prefix caches, to compare with the product's own.

Only the laboratory uses them. Each has its published constants.
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
"""Default for the prompt tokens that an engine computes a second: an L4 with an 8B model."""

_NAMES = (CacheAware.__name__, AIBrix.__name__, LMetric.__name__, Sticky.__name__)


def names() -> tuple[str, ...]:
    """Return the names of all rules."""
    return _NAMES


def build(
    name: str, spec: LoadBalancingSpec, rng: Random, signals: Signals, peak: float = _PEAK
) -> Strategy:
    """Return the rule of this name. It ignores `spec`.

    `peak` is the rate at which an engine computes prompts. One rule needs it.
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
    raise ValueError(f"unknown rule {name!r}: known rules are {', '.join(_NAMES)}")
