"""LMetric: "Simple is Better: Multiplication May Be All You Need for LLM Request Scheduling".

arXiv 2603.15202. It has no constants.
"""

from __future__ import annotations

from collections.abc import Sequence

from extproc.lab.published_rules.rule import Cost, Rule, Seen


class LMetric(Rule):
    """The least product of tokens and requests.

    The tokens are those to compute before the response, including those that wait there already.
    The requests include the new one.
    """

    def costs(self, tokens: float, endpoints: Sequence[Seen]) -> Sequence[Cost]:
        return [
            ((one.backlog + max(0.0, tokens - one.cached)) * (one.requests + 1),)
            for one in endpoints
        ]
