"""Rule `prefix-cache` of AIBrix's gateway."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, pstdev

from extproc.lab.published_rules.rule import Cost, Rule, Seen

_IMBALANCE = 8
"""Limit for the difference in requests between the busiest and the least busy pod."""

_SIGMAS = 1
"""Limit for the requests of a pod whose match counts, in standard deviations above the mean."""


class AIBrix(Rule):
    """The fewest requests if unbalanced. Else the longest match among pods that are not too busy.

    Without a match, the fewest requests. The original's index forgets after 20 minutes; this one
    follows the engine's cache.
    """

    def costs(self, tokens: float, endpoints: Sequence[Seen]) -> Sequence[Cost]:
        requests = [one.requests for one in endpoints]
        if max(requests) - min(requests) > _IMBALANCE:
            return [(number,) for number in requests]
        limit = fmean(requests) + _SIGMAS * pstdev(requests)
        return [(-one.cached if one.requests <= limit else 0.0, one.requests) for one in endpoints]
