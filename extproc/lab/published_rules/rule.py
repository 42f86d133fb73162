"""Base of the published rules: what they see of an endpoint, and the choice of the least cost.

They see more than the product does in Envoy's default configuration, as their publications assume:
the moment of each first token (see `Scenario.of`). They use the product's prefix index, which knows
the size of the engines' caches. That favors rules whose own trees do not.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from random import Random
from typing import NamedTuple

from extproc.core.fleet.endpoint import Endpoint, Snapshot
from extproc.core.fleet.sent_request import NOTHING_SENT, SentRequest
from extproc.core.fleet.signals import Signals
from extproc.core.request.blocks import BLOCK_BYTES, Prompt
from extproc.core.strategies import Candidate, Prediction, Query, Reason, Strategy

Cost = tuple[float, ...]
"""The first number decides, the next ones break ties. Remaining ties are broken at random."""

_NO_PROMPT = Prompt((), 0)


class Seen(NamedTuple):
    """An endpoint as a rule sees it for one request."""

    requests: int
    """In-flight requests there, without the new one."""

    backlog: float
    """Prompt tokens that it still has to compute."""

    cached: float
    """Tokens of this prompt that it probably has."""

    tree: int
    """Blocks of all prompts that it probably has."""


class Rule(Strategy):
    """Base of the rules."""

    reads_signals = True
    reads_prompts = True

    def __init__(self, signals: Signals, rng: Random) -> None:
        self._signals = signals
        self._rng = rng

    @abstractmethod
    def costs(self, tokens: float, endpoints: Sequence[Seen]) -> Sequence[Cost]:
        """Return the cost of each endpoint for a prompt of `tokens` tokens.

        `endpoints` is never empty.
        """

    def rank(
        self, query: Query, snapshot: Snapshot, loads: Mapping[str, int]
    ) -> Iterator[Candidate]:
        eligible = snapshot.eligible(query.adapter)
        if not eligible:
            return
        tokens = (query.prompt or _NO_PROMPT).bytes / query.bytes_per_token
        seen = self._look(query, eligible, loads)
        costs = self.costs(tokens, seen)
        for hops, place in enumerate(self._order(costs)):
            cached = seen[place].cached
            reason = Reason.CACHED if cached else Reason.LEAST_LOAD
            yield Candidate(eligible[place], hops, reason, Prediction(tokens, cached))

    def describe(self, query: Query, chosen: Candidate) -> SentRequest:
        """Return the prompt, which the endpoint's cache will have."""
        if query.prompt is None or chosen.prediction is None:
            return NOTHING_SENT
        tokens, cached = chosen.prediction
        return SentRequest("", (query.prompt.blocks,), None, tokens, tokens - cached)

    def _look(
        self, query: Query, eligible: Sequence[Endpoint], loads: Mapping[str, int]
    ) -> list[Seen]:
        index = self._signals.prefixes
        depths = index.matches((query.prompt or _NO_PROMPT).blocks)
        backlog = self._signals.backlog.tokens
        per_block = BLOCK_BYTES / query.bytes_per_token
        return [
            Seen(
                loads.get(address, 0),
                backlog.get(address, 0.0),
                per_block * depths.get(address, 0),
                index.size(address),
            )
            for address in (endpoint.address for endpoint in eligible)
        ]

    def _order(self, costs: Sequence[Cost]) -> Iterator[int]:
        least = min(costs)
        best = self._rng.choice([place for place, cost in enumerate(costs) if cost == least])
        yield best
        yield from sorted((p for p in range(len(costs)) if p != best), key=costs.__getitem__)
