"""`cache_aware` of SGLang's router, which vLLM's router (a fork) has as well."""

from __future__ import annotations

from collections.abc import Sequence

from extproc.lab.published_rules.rule import Cost, Rule, Seen

_ABSOLUTE = 64
_RELATIVE = 1.5
"""`balance_abs_threshold` and `balance_rel_threshold`: the fleet is out of balance where the
busiest endpoint has so many requests more than the idlest, and so many times as many."""

_MATCH = 0.3
"""`cache_threshold`: the share of the prompt that must match for the match to count."""


class CacheAware(Rule):
    """Out of balance: the least loaded. Else the best match, if there is a good one; else the
    smallest tree, which is any where all are full.
    """

    def costs(self, tokens: float, endpoints: Sequence[Seen]) -> Sequence[Cost]:
        requests = [one.requests for one in endpoints]
        most, least = max(requests), min(requests)
        if most - least > _ABSOLUTE and most > _RELATIVE * least:
            return [(number,) for number in requests]
        if max(one.cached for one in endpoints) > _MATCH * tokens:
            return [(-one.cached,) for one in endpoints]
        return [(one.tree,) for one in endpoints]
