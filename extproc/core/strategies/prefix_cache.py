"""PrefixCache: where the prompt is the least work, weighed with how much there is to do.

The sidecar remembers what it sent where, block by block, and what is computed there; vLLM's metrics
tell how large caches are, whose answers have begun, and what others do there.

    for each endpoint e that can serve the request

        cached = tokens of the prompt that are in e's cache               (the prefix index)
                 or that others have probably sent there                  (e is one of its homes)
        work   = tokens - cached + answer                                 (what the request costs e)
        load   = backlog(e) + own * (tokens - cached)                     (what it waits for there)
                 + busy * (requests(e) + 1) / (least requests + 1)
        cost   = work * load

    choose, of those whose cost is within a quarter of the least, the first on the ring

Backlog and requests are this sidecar's own, as it sees them come and go, and what engines say of
others' (`extproc.core.fleet.pressure`): there a queue and a full memory weigh more than they
number.

The product is weighted workload routing: a task goes where the workload, times the time that it
takes there, is least. That is stable under every load that any rule can bear, and optimal in heavy
traffic, where tasks are done faster at their data (Xie, Yekkehkhany, Lu: "Scheduling with
Multi-level Data Locality", INFOCOM 2016). A cache that saves nine tenths of the work is
worth ten times the load, in idle fleets and in full ones, and nothing has to be tuned for
either. A sum of the two is right for one of them; LMetric (arXiv 2603.15202) found the same.

Sidecars share nothing. They meet on the ring: the first endpoints after a prompt's key are its
homes, and what others were asked is probably there, the more of it the more of all requests are
others'. The quarter is consistent hashing with bounded loads, at its own constant: those who
believe nearly the same of endpoints choose the same one. On the ring stands the system prompt,
until all have it, then the key that `prefixHash` describes: the first message of the user, or a
session's header.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import islice
from math import inf
from operator import itemgetter
from random import Random

from extproc.core.fleet.endpoint import Endpoint, Snapshot
from extproc.core.fleet.signals import Signals
from extproc.core.fleet.weights import WEIGHTS, Weights
from extproc.core.request.blocks import BLOCK_BYTES, Prompt
from extproc.core.schema import SignalsSpec
from extproc.core.strategies.base import Candidate, Prediction, Query, Reason, Strategy

_NO_PROMPT = Prompt((), 0)

_HOMES = 3
"""Endpoints of the ring where a prompt may be at home; each has half the chance of the one before
it."""

_ALONE = 0.05
"""Share of others' requests up to which nothing is believed of what they do."""


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
        self._pick: Callable[[Mapping[str, float]], Sequence[float]] = lambda known: ()
        self._places: dict[str, int] = {}
        self._silent: Collection[str] = ()
        self._looked = -inf

    def rank(
        self, query: Query, snapshot: Snapshot, loads: Mapping[str, int]
    ) -> Iterator[Candidate]:
        eligible = snapshot.eligible(query.adapter)
        if not eligible:
            return
        self._number(eligible)
        self._look()
        prompt = query.prompt or _NO_PROMPT
        tokens = prompt.bytes / query.bytes_per_token
        depths = self._depths(prompt)
        home = self._home(query, prompt, depths)
        per_block = BLOCK_BYTES / query.bytes_per_token
        cached = {place: per_block * depth for place, depth in depths.items()}
        self._add_homes(cached, tokens, snapshot.walk(home, query.adapter))
        costs = self._costs(tokens, cached)
        most = max(depths.values(), default=0)
        for hops, place in enumerate(self._order(costs, snapshot.walk(home, query.adapter))):
            depth = depths.get(place, 0)
            if query.prompt is None:
                yield Candidate(eligible[place], hops, Reason.NO_PREFIX)
            else:
                prediction = Prediction(tokens, per_block * depth)
                yield Candidate(eligible[place], hops, _reason(depth, most), prediction)

    def record_choice(self, query: Query, endpoint: Endpoint) -> None:
        """Its cache will have the prompt, and its memory the adapter."""
        if query.prompt is not None:
            self._signals.prefixes.sent(endpoint.address, query.prompt.blocks)
            for blocks in query.prompt.other_chains:
                self._signals.prefixes.sent(endpoint.address, blocks)
        if query.adapter:
            self._signals.residency.used(endpoint.address, query.adapter)

    def _number(self, eligible: Sequence[Endpoint]) -> None:
        """An endpoint's place is its number among the eligible ones."""
        if eligible is not self._eligible:  # nearly always they are those of the request before
            self._eligible = eligible
            self._addresses = addresses = [endpoint.address for endpoint in eligible]
            self._pick = _picker(addresses)
            self._places = {address: place for place, address in enumerate(addresses)}

    def _look(self) -> None:
        """Now and then: what endpoints said long ago counts no more.

        One that says nothing while others speak may hang. It would keep all whose prompts it has,
        so none are believed to be there.
        """
        now = self._signals.clock()
        max_age = self._spec.stale_after_seconds
        if now >= self._looked + max_age / 3:
            self._looked = now
            self._signals.pressure.expire(now - max_age)
            self._silent = self._signals.stale(max_age)

    def _depths(self, prompt: Prompt) -> dict[int, int]:
        """How many blocks of the prompt endpoints have, by their places.

        Where a request has several prompts, the blocks of all of them together.
        """
        places = self._places
        depths = {
            places[address]: depth
            for address, depth in self._signals.prefixes.matches(prompt.blocks).items()
            if address in places and address not in self._silent
        }
        for blocks in prompt.other_chains:
            for address, depth in self._signals.prefixes.matches(blocks).items():
                if address in places and address not in self._silent:
                    place = places[address]
                    depths[place] = depths.get(place, 0) + depth
        return depths

    def _home(self, query: Query, prompt: Prompt, depths: Mapping[int, int]) -> int:
        """The prompt's key on the ring: any, where nothing says which."""
        shared = None if self._by_header or query.session else prompt.system_hash
        if shared is not None and not self._everywhere(depths, prompt.system_blocks):
            return shared
        return self._rng.getrandbits(64) if query.key is None else query.key

    def _everywhere(self, depths: Mapping[int, int], blocks: int) -> bool:
        """Whether each endpoint has so many blocks of the prompt."""
        return len(depths) == len(self._addresses) and min(depths.values()) >= blocks

    def _add_homes(self, cached: dict[int, float], tokens: float, ring: Iterator[Endpoint]) -> None:
        """Adds what other sidecars have probably sent to the prompt's homes."""
        others = self._signals.pressure.share_of_others
        if others <= _ALONE:
            return
        probably = self._weights.home * others * tokens
        for endpoint in islice(ring, _HOMES):
            place = self._places[endpoint.address]
            if probably > cached.get(place, 0.0) and endpoint.address not in self._silent:
                cached[place] = probably
            probably /= 2

    def _costs(self, tokens: float, cached: Mapping[int, float]) -> list[float]:
        """Of the request on each endpoint, by place, as shares of its work where all is cold."""
        requests = self._pick(self._signals.requests)
        backlog = self._pick(self._signals.tokens)
        busy = self._weights.busy / (min(requests) + 1)
        wait = self._weights.own * tokens + busy
        costs = [
            before + busy * number + wait for before, number in zip(backlog, requests, strict=True)
        ]
        work = tokens + self._weights.answer
        for place, saved in cached.items():  # few: everywhere else the wait says it all
            costs[place] = (1 - saved / work) * (costs[place] - self._weights.own * saved)
        return costs

    def _order(self, costs: list[float], ring: Iterator[Endpoint]) -> Iterator[int]:
        """Places, the best first. Those that were taken cost without end."""
        best = min(costs)
        limit = self._weights.nearly * best
        place = costs.index(best)
        costs[place] = inf
        least = min(costs)
        if least > limit:
            yield place
        else:
            costs[place] = best
            yield from self._nearly_best(costs, limit, ring)
            least = min(costs)
        while least < inf:
            place = costs.index(least)
            costs[place] = inf
            yield place
            least = min(costs)

    def _nearly_best(
        self, costs: list[float], limit: float, ring: Iterator[Endpoint]
    ) -> Iterator[int]:
        """Places that cost no more than that, as they are met on the ring."""
        places = self._places  # another request may number other endpoints meanwhile
        left = sum(cost <= limit for cost in costs)
        for endpoint in ring:
            place = places[endpoint.address]
            if costs[place] <= limit:
                costs[place] = inf
                yield place
                left -= 1
                if not left:
                    return


def _picker(keys: Sequence[str]) -> Callable[[Mapping[str, float]], Sequence[float]]:
    """Looks all of them up at once."""
    if len(keys) > 1:
        return itemgetter(*keys)
    return lambda known: [known[key] for key in keys]  # of one key itemgetter gives no sequence


def _reason(depth: int, most: int) -> Reason:
    if not most:
        return Reason.COLD
    return Reason.CACHED if depth == most else Reason.SPARED
