"""Rule "sticky until saturated" of llm-d (August 2026)."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from extproc.core.fleet.signals import Signals
from extproc.lab.published_rules.rule import Cost, Rule, Seen

_WARM = 0.80
"""Share of the prompt that a warm endpoint has."""

_SECONDS = 18.0
"""Constant `T_max`: seconds of prompt computation by which the best warm endpoint may exceed the
best of the others.
"""


class Sticky(Rule):
    """The least work among warm endpoints, unless these are saturated, else among all.

    Work is the waiting tokens and the uncached tokens of the prompt. `peak` is tokens a second.
    """

    def __init__(self, signals: Signals, rng: Random, peak: float) -> None:
        super().__init__(signals, rng)
        self._budget = peak * _SECONDS

    def costs(self, tokens: float, endpoints: Sequence[Seen]) -> Sequence[Cost]:
        warm = [one.cached >= _WARM * tokens > 0 for one in endpoints]
        kept = warm if self._is_sticky(warm, endpoints) else [True] * len(warm)
        return [
            (0.0 if keep else 1.0, one.backlog + max(0.0, tokens - one.cached))
            for keep, one in zip(kept, endpoints, strict=True)
        ]

    def _is_sticky(self, warm: Sequence[bool], endpoints: Sequence[Seen]) -> bool:
        pairs = list(zip(warm, endpoints, strict=True))
        of_warm = [one.backlog for is_warm, one in pairs if is_warm]
        of_cold = [one.backlog for is_warm, one in pairs if not is_warm]
        if not of_warm or not of_cold:
            return bool(of_warm)
        return min(of_warm) - min(of_cold) <= self._budget
