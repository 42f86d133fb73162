"""What the published rules have in common: what they look at, and that the least cost is chosen.

They see more than the product does in Envoy's default configuration, because their publications
assume so: they sit in the stream, and know the moment of each first token (see `Scenario.of`).
What was sent where they look up in the same index as the product, which knows how much
fits into an engine's cache. That is kind to those whose own trees know nothing of it.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from random import Random
from typing import NamedTuple

from extproc.core.fleet.endpoint import Endpoint, Snapshot
from extproc.core.fleet.signals import Signals
from extproc.core.request.blocks import BLOCK_BYTES, Prompt
from extproc.core.strategies import Candidate, Prediction, Query, Reason, Strategy

Cost = tuple[float, ...]
"""What comes first counts; the rest breaks ties. Those that are left are broken at random."""

_NO_PROMPT = Prompt((), 0)


class Seen(NamedTuple):
    """An endpoint as a rule sees it for one request."""

    requests: int
    """In flight there, without this one."""

    backlog: float
    """Prompt tokens that it has yet to compute."""

    cached: float
    """Tokens of this prompt that it probably has."""

    tree: int
    """Blocks that it probably has of all prompts."""


class Rule(Strategy):
    """Keeps what was sent where in `signals.prefixes`."""

    reads_signals = True
    reads_prompts = True

    def __init__(self, signals: Signals, rng: Random) -> None:
        self._signals = signals
        self._rng = rng

    @abstractmethod
    def costs(self, tokens: float, endpoints: Sequence[Seen]) -> Sequence[Cost]:
        """Of each endpoint, for a prompt of so many tokens. There is one endpoint at least."""

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

    def chosen(self, query: Query, endpoint: Endpoint) -> None:
        """Its cache will have the prompt."""
        if query.prompt is not None:
            self._signals.prefixes.sent(endpoint.address, query.prompt.blocks)

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
