"""`prefix-cache` of AIBrix's gateway."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, pstdev

from extproc.lab.published_rules.rule import Cost, Rule, Seen

_IMBALANCE = 8
"""Requests that the busiest pod may have more than the idlest."""

_SIGMAS = 1
"""Standard deviations above the mean that a pod's requests may be, for its match to count."""


class AIBrix(Rule):
    """Out of balance: the fewest requests. Else the longest match among pods that are not too
    busy, where one has any; else the fewest requests.

    The original's index forgets after 20 minutes; here it does what the engine's cache does.
    """

    def costs(self, tokens: float, endpoints: Sequence[Seen]) -> Sequence[Cost]:
        requests = [one.requests for one in endpoints]
        if max(requests) - min(requests) > _IMBALANCE:
            return [(number,) for number in requests]
        limit = fmean(requests) + _SIGMAS * pstdev(requests)
        return [(-one.cached if one.requests <= limit else 0.0, one.requests) for one in endpoints]
