"""Rule `cache_aware` of SGLang's router and of its fork, vLLM's router."""

from __future__ import annotations

from collections.abc import Sequence

from extproc.lab.published_rules.rule import Cost, Rule, Seen

_ABSOLUTE = 64
_RELATIVE = 1.5
"""Thresholds `balance_abs_threshold` and `balance_rel_threshold`.

The fleet is unbalanced if the busiest endpoint exceeds the least busy one by both.
"""

_MATCH = 0.3
"""Threshold `cache_threshold`: the least share of the prompt that counts as a match."""


class CacheAware(Rule):
    """The least loaded if unbalanced. Else the best match, if good enough, else the smallest tree.

    If all trees are full, any endpoint has the smallest.
    """

    def costs(self, tokens: float, endpoints: Sequence[Seen]) -> Sequence[Cost]:
        requests = [one.requests for one in endpoints]
        most, least = max(requests), min(requests)
        if most - least > _ABSOLUTE and most > _RELATIVE * least:
            return [(number,) for number in requests]
        if max(one.cached for one in endpoints) > _MATCH * tokens:
            return [(-one.cached,) for one in endpoints]
        return [(one.tree,) for one in endpoints]
