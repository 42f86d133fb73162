"""The oracle as a strategy: it examines the engines themselves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from random import Random

from extproc.core.fleet.endpoint import Endpoint, Snapshot
from extproc.core.fleet.sent_request import NOTHING_SENT, SentRequest
from extproc.core.strategies import Candidate, Query, Reason, Strategy
from extproc.lab.oracle.outlook import Outlook
from extproc.lab.oracle.rules import RULES, Cost
from extproc.lab.oracle.truth import Truth

_EXAMINED = 12
"""Engines with the most of the prompt that are examined, and as many with the fewest requests."""


class Oracle(Strategy):
    """The least cost by one of the rules."""

    def __init__(self, rule: str, truth: Truth, numbers: Mapping[str, int], rng: Random) -> None:
        """`numbers` are those of the engines by address."""
        self._costs = RULES[rule]
        self._truth = truth
        self._numbers = numbers
        self._rng = rng

    def rank(
        self, query: Query, snapshot: Snapshot, loads: Mapping[str, int]
    ) -> Iterator[Candidate]:
        eligible = self._examined(snapshot.eligible(query.adapter))
        if not eligible:
            return
        costs = self._costs([self._outlook(one) for one in eligible])
        for hops, place in enumerate(self._order(costs)):
            yield Candidate(eligible[place], hops, Reason.LEAST_LOAD)

    def describe(self, query: Query, chosen: Candidate) -> SentRequest:
        """Record the prompt in the truth about the engines; the sidecar records nothing."""
        self._truth.sent(self._numbers[chosen.endpoint.address])
        return NOTHING_SENT

    def _examined(self, eligible: Sequence[Endpoint]) -> Sequence[Endpoint]:
        """Return the engines worth examining."""
        if len(eligible) <= 2 * _EXAMINED:
            return eligible
        numbers = {one: self._numbers[one.address] for one in eligible}
        warm = sorted(eligible, key=lambda one: -self._truth.cached(numbers[one]))
        idle = sorted(eligible, key=lambda one: self._truth.requests(numbers[one]))
        return list(dict.fromkeys([*warm[:_EXAMINED], *idle[:_EXAMINED]]))

    def _outlook(self, endpoint: Endpoint) -> Outlook:
        return self._truth.outlook(self._numbers[endpoint.address])

    def _order(self, costs: Sequence[Cost]) -> Iterator[int]:
        least = min(costs)
        best = self._rng.choice([place for place, cost in enumerate(costs) if cost == least])
        yield best
        yield from sorted((p for p in range(len(costs)) if p != best), key=costs.__getitem__)
