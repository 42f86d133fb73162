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
others' (`extproc.core.pressure`): there a queue and a full memory weigh more than they number.

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

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice, repeat
from math import inf
from operator import add, itemgetter
from random import Random

from extproc.core.blocks import BLOCK_BYTES, Prompt
from extproc.core.endpoint import Endpoint, Snapshot
from extproc.core.signals import Signals
from extproc.core.spec import SignalsSpec
from extproc.core.strategies.base import Candidate, Prediction, Query, Reason, Strategy
from extproc.core.weights import WEIGHTS, Weights

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

    def rank(
        self, query: Query, snapshot: Snapshot, loads: Mapping[str, int]
    ) -> Iterator[Candidate]:
        eligible = snapshot.eligible(query.adapter)
        if not eligible:
            return
        self._number(eligible)
        prompt = query.prompt or _NO_PROMPT
        tokens = prompt.bytes / query.bytes_per_token
        depths = self._depths(prompt)
        home = self._home(query, prompt, depths)
        per_block = BLOCK_BYTES / query.bytes_per_token
        cached = {place: per_block * depth for place, depth in depths.items()}
        self._add_homes(cached, tokens, snapshot.walk(home, query.adapter))
        costs = self._costs(tokens, cached, loads)
        most = max(depths.values(), default=0)
        for hops, place in enumerate(self._order(costs, snapshot.walk(home, query.adapter))):
            depth = depths.get(place, 0)
            if query.prompt is None:
                yield Candidate(eligible[place], hops, Reason.NO_PREFIX)
            else:
                prediction = Prediction(tokens, per_block * depth)
                yield Candidate(eligible[place], hops, _reason(depth, most), prediction)

    def chosen(self, query: Query, endpoint: Endpoint) -> None:
        """Its cache will have the prompt, and its memory the adapter."""
        if query.prompt is not None:
            self._signals.prefixes.sent(endpoint.address, query.prompt.blocks)
        if query.adapter:
            self._signals.residency.used(endpoint.address, query.adapter)

    def _number(self, eligible: Sequence[Endpoint]) -> None:
        """An endpoint's place is its number among the eligible ones."""
        if eligible is not self._eligible:  # nearly always they are those of the request before
            self._eligible = eligible
            self._addresses = addresses = [endpoint.address for endpoint in eligible]
            # Of one key alone itemgetter gives no sequence, so one is asked for twice.
            self._pick = itemgetter(*addresses, addresses[0])
            self._places = {address: place for place, address in enumerate(self._addresses)}

    def _depths(self, prompt: Prompt) -> dict[int, int]:
        """How many blocks of the prompt endpoints have, by their places."""
        places = self._places
        return {
            places[address]: depth
            for address, depth in self._signals.prefixes.matches(prompt.blocks).items()
            if address in places and not self._is_silent(address)
        }

    def _home(self, query: Query, prompt: Prompt, depths: Mapping[int, int]) -> int:
        """The prompt's key on the ring: any, where nothing says which."""
        shared = None if self._by_header else prompt.shared
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
            if probably > cached.get(place, 0.0) and not self._is_silent(endpoint.address):
                cached[place] = probably
            probably /= 2

    def _is_silent(self, address: str) -> bool:
        """Whether it says nothing while others speak: it may hang.

        It would keep all whose prompts it has, so none are believed to be there.
        """
        return self._signals.fell_silent(address, self._spec.stale_after_seconds)

    def _costs(
        self, tokens: float, cached: Mapping[int, float], loads: Mapping[str, int]
    ) -> _Costs:
        """By place: of what is ours, and of what weighs on endpoints besides."""
        pressure = self._signals.pressure
        pressure.expire(self._signals.clock(), self._spec.stale_after_seconds)
        ours = map(loads.get, self._addresses, repeat(0))
        requests = list(map(add, ours, self._pick(pressure.requests)))
        backlog = map(self._signals.backlog.tokens.get, self._addresses, repeat(0.0))
        busy = self._weights.busy / (min(requests) + 1)
        wait = self._weights.own * tokens + busy
        waits = [
            before + others + busy * number + wait
            for before, others, number in zip(
                backlog, self._pick(pressure.tokens), requests, strict=False
            )
        ]
        return _Costs(self._weights, tokens, cached, waits)

    def _order(self, costs: _Costs, ring: Iterator[Endpoint]) -> Iterator[int]:
        """Places, the best first."""
        good = costs.within(self._weights.nearly)
        best: Iterable[int] = good
        if len(good) > 1:
            places = self._places  # another request may number other endpoints meanwhile
            met = (places[endpoint.address] for endpoint in ring)
            best = islice((place for place in met if place in good), len(good))
        return chain(costs.taken(best), costs.taken(iter(costs.least, None)))


class _Costs:
    """What a request costs on each endpoint; `waits` is what it would wait for if all were cold.

    Nearly all endpoints have nothing of a prompt, and for them the one with the least to wait for
    costs least: so only where something is cached the cost is computed.
    """

    def __init__(
        self, weights: Weights, tokens: float, cached: Mapping[int, float], waits: list[float]
    ) -> None:
        self._work = work = tokens + weights.answer
        self._waits = waits
        self._warm = {
            place: (work - saved) * (waits[place] - weights.own * saved)
            for place, saved in cached.items()
        }

    def within(self, nearly: float) -> Collection[int]:
        """The places where it costs no more than so many times the least."""
        cold = self._work * min(self._waits)
        limit = nearly * min(cold, min(self._warm.values(), default=inf))
        good = {place for place, cost in self._warm.items() if cost <= limit}
        if cold <= limit:
            most = limit / self._work
            good.update(place for place, wait in enumerate(self._waits) if wait <= most)
        return good

    def taken(self, places: Iterable[int]) -> Iterator[int]:
        """These places, which from then on are none any more."""
        for place in places:
            self._waits[place] = inf
            self._warm.pop(place, None)
            yield place

    def least(self) -> int | None:
        """The place where it costs least, of those that are left."""
        wait = min(self._waits)
        if wait == inf:
            return None
        # What is computed for a warm place is never more than if it were cold.
        if self._warm and min(self._warm.values()) <= self._work * wait:
            return min(self._warm, key=self._warm.__getitem__)
        return self._waits.index(wait)


def _reason(depth: int, most: int) -> Reason:
    if not most:
        return Reason.COLD
    return Reason.CACHED if depth == most else Reason.SPARED
