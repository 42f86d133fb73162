"""PrefixCache: where the prompt is the least work, weighed with how much there is to do.

The sidecar remembers what it sent where, block by block, and what is computed there; vLLM's metrics
tell how large caches are, how many requests others have there and whose answers have begun.

    for each endpoint e that can serve the request

        uncached = tokens of the prompt that are not in e's cache         (the prefix index)
        work     = uncached + answer                                      (what the request costs e)
        load     = backlog(e) + own * uncached                            (what it waits for there)
                   + busy * (requests(e) + 1) / (least requests + 1)
        cost     = work * load

    choose, of those whose cost is within a quarter of the least, the first on the ring

The product is weighted workload routing: a task goes where the workload, times the time that it
takes there, is least. That is stable under every load that any rule can bear, and optimal in heavy
traffic, where tasks are done faster at their data (Xie, Yekkehkhany, Lu: "Scheduling with
Multi-level Data Locality", INFOCOM 2016). A cache that saves nine tenths of the work is
worth ten times the load, in idle fleets and in full ones, and nothing has to be tuned for
either. A sum of the two is right for one of them; LMetric (arXiv 2603.15202) found the same.

The quarter is consistent hashing with bounded loads, at its own constant. Sidecars share nothing,
and each knows its own requests only; as long as they believe nearly the same of endpoints, they
agree on where a new prompt is at home, and a session finds its way back through any of them.
On the ring stands the system prompt, where it is most of the prompt, else the key that
`prefixHash` describes: the first message of the user, or a session's header.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import repeat
from math import inf
from operator import add
from random import Random
from typing import NamedTuple

from extproc.core.blocks import BLOCK_BYTES, Prompt
from extproc.core.endpoint import Endpoint, Snapshot
from extproc.core.signals import Signals
from extproc.core.spec import SignalsSpec
from extproc.core.strategies.base import Candidate, Prediction, Query, Reason, Strategy


class Weights(NamedTuple):
    """What is weighed against what.

    Nobody needs to turn them: the costs of one request are compared with each other only.
    """

    answer: float = 500.0
    """Tokens to compute that an answer counts as: what no cache saves."""

    own: float = 0.3
    """Of the request's own prompt: it waits for that, too."""

    busy: float = 3000.0
    """Tokens to compute that as many requests in flight as the idlest endpoint has count as: they
    slow each other down, and fill the cache."""

    nearly: float = 1.25
    """Times the least cost: what costs no more than that is as good."""


WEIGHTS = Weights()
_NO_PROMPT = Prompt((), 0)


class PrefixCache(Strategy):
    """Remembers in `signals.prefixes` what was sent where. `by_header`: a session's own header
    says where it is at home, before its system prompt.
    """

    reads_signals = True
    reads_prompts = True

    def __init__(
        self,
        signals: Signals,
        spec: SignalsSpec,
        rng: Random,
        *,
        by_header: bool = False,
        weights: Weights = WEIGHTS,
    ) -> None:
        self._signals = signals
        self._spec = spec
        self._rng = rng
        self._by_header = by_header
        self._weights = weights
        self._eligible: Sequence[Endpoint] = ()
        self._addresses: list[str] = []
        self._places: dict[str, int] = {}

    def rank(
        self, query: Query, snapshot: Snapshot, loads: Mapping[str, int]
    ) -> Iterator[Candidate]:
        eligible = snapshot.eligible(query.adapter)
        if not eligible:
            return
        prompt = query.prompt or _NO_PROMPT
        tokens = prompt.bytes / query.bytes_per_token
        per_block = BLOCK_BYTES / query.bytes_per_token
        cached = {
            place: per_block * depth for place, depth in self._depths(eligible, prompt).items()
        }
        most = max(cached.values(), default=0.0)
        costs = self._costs(tokens, cached, loads)
        for hops, place in enumerate(self._order(query, prompt, snapshot, costs)):
            if query.prompt is None:
                yield Candidate(eligible[place], hops, Reason.NO_PREFIX)
                continue
            found = cached.get(place, 0.0)
            prediction = Prediction(tokens, found)
            yield Candidate(eligible[place], hops, _reason(found, most), prediction)

    def chosen(self, query: Query, endpoint: Endpoint) -> None:
        """Its cache will have the prompt, and its memory the adapter."""
        if query.prompt is not None:
            self._signals.prefixes.sent(endpoint.address, query.prompt.blocks)
        if query.adapter:
            self._signals.residency.used(endpoint.address, query.adapter)

    def _depths(self, eligible: Sequence[Endpoint], prompt: Prompt) -> dict[int, int]:
        """How many blocks of the prompt endpoints have, by their places.

        Of one that has fallen silent while others speak nothing is believed: it may hang, and
        would keep all whose prompts it has.
        """
        if eligible is not self._eligible:  # nearly always they are those of the request before
            self._eligible = eligible
            self._addresses = [endpoint.address for endpoint in eligible]
            self._places = {address: place for place, address in enumerate(self._addresses)}
        places, max_age = self._places, self._spec.stale_after_seconds
        return {
            places[address]: depth
            for address, depth in self._signals.prefixes.matches(prompt.blocks).items()
            if address in places and not self._signals.fell_silent(address, max_age)
        }

    def _costs(
        self, tokens: float, cached: Mapping[int, float], loads: Mapping[str, int]
    ) -> list[float]:
        answer, own, busy, _ = self._weights
        requests = self._requests(self._addresses, loads)
        backlog = map(self._signals.backlog.tokens.get, self._addresses, repeat(0.0))
        busy /= min(requests) + 1
        # Most endpoints have nothing of the prompt, and need not be looked at for it.
        work, wait = tokens + answer, own * tokens + busy
        loads_there = [
            before + wait + busy * number for before, number in zip(backlog, requests, strict=True)
        ]
        costs = [work * load for load in loads_there]
        for place, saved in cached.items():
            costs[place] = (work - saved) * (loads_there[place] - own * saved)
        return costs

    def _requests(self, addresses: Sequence[str], loads: Mapping[str, int]) -> list[float]:
        """In flight on each endpoint: ours, and what endpoints say of others'."""
        ours = map(loads.get, addresses, repeat(0))
        others = self._signals.elsewhere(self._spec.stale_after_seconds)
        if not others:
            return list(ours)
        return list(map(add, ours, map(others.get, addresses, repeat(0.0))))

    def _order(
        self, query: Query, prompt: Prompt, snapshot: Snapshot, costs: list[float]
    ) -> Iterator[int]:
        """The places of endpoints among the eligible ones, the best first."""
        limit = self._weights.nearly * min(costs)
        good = [place for place, cost in enumerate(costs) if cost <= limit]
        for place in good if len(good) == 1 else self._along_ring(query, prompt, snapshot, good):
            costs[place] = inf
            yield place
        # Nearly all callers take two, so the others are not sorted.
        while (least := min(costs)) < inf:
            place = costs.index(least)
            costs[place] = inf
            yield place

    def _along_ring(
        self, query: Query, prompt: Prompt, snapshot: Snapshot, places: Sequence[int]
    ) -> Iterator[int]:
        """These places, as they are met on the ring."""
        eligible = snapshot.eligible(query.adapter)
        found = {eligible[place].address: place for place in places}
        for endpoint in snapshot.walk(self._home(query, prompt), query.adapter):
            place = found.get(endpoint.address)
            if place is not None:
                yield place

    def _home(self, query: Query, prompt: Prompt) -> int:
        """The place on the ring: any, where nothing says which."""
        shared = None if self._by_header else prompt.shared
        if shared is not None:
            return shared
        return self._rng.getrandbits(64) if query.key is None else query.key


def _reason(cached: float, most: float) -> Reason:
    if not most:
        return Reason.COLD
    return Reason.CACHED if cached == most else Reason.SPARED
