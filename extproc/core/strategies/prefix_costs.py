"""The costs by which PrefixCache compares endpoints: the work of a request times the load there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import inf
from typing import NamedTuple

from extproc.core.fleet.signals import Signals
from extproc.core.fleet.totals import Total
from extproc.core.fleet.weights import Weights

_MORE_WORK = 1.3
"""Least work on an endpoint without the prefix, as a multiple of the work on one that has it. So if
all are idle, a request goes where its prefix is."""

_UNPROVEN = 5.0
"""Most uses of a further copy that are expected without proof, as a multiple of those that make
half of its tokens count as saved. A dozen sessions behind one system prompt need copies early."""

_DEAR_TOKENS = 30_000.0
"""Tokens of a prefix of which one such multiple is expected without proof; fewer uses of a longer
prefix are, because a copy that is not used costs more."""

_BEHIND = 0.5
"""Share of a prefix's own computation that each endpoint with the prefix has to compute first, from
which a further copy counts fully on an idle endpoint: the request would wait about as long for an
old copy, and delays no other there."""

_LEAST_MISSED = 0.02
"""Share of evicted tokens that are missed, below which an eviction costs nothing."""

_MOST_MISSED = 0.9
"""Highest such share that is believed: then each evicted token costs nine others."""

_SLOWNESS_POWER = 1.3
"""Power of the slowness by which a cost is multiplied. In the laboratory, agents overload the
fastest endpoints if it is 2. If it is 1, more requests wait on slow ones."""

_REFRESH_SECONDS = 0.25
"""Seconds after which paused sessions, and what caches evict, are read again."""


class Copied(NamedTuple):
    """The value of a further copy of a prefix for later requests."""

    tokens: float = 0.0
    """Tokens of the request's prompt that the copy would save later."""

    soon: float = inf
    """Backlog above which an endpoint would have the copy later than an old copy could be used."""

    idle: float = 0.0
    """These tokens on an endpoint without requests, if its cache has room."""


NOTHING = Copied()


class PrefixCosts:
    """Costs of a request on the endpoints, which are numbered by their positions."""

    def __init__(self, signals: Signals, weights: Weights) -> None:
        self._signals = signals
        self._weights = weights
        self._addresses: Sequence[str] = ()
        self._kept_seconds = 0.0
        self._evicting: Mapping[int, float] = {}
        self._factors: Sequence[float] = ()
        self._copies_worth: Sequence[float] = ()
        self._refreshed_at = -inf
        self._totals: list[Total] = []
        self._version = -1
        self._loads: list[float] = []
        self._busy = 0.0
        self._least_room = inf

    def use(self, addresses: Sequence[str]) -> None:
        """Set the endpoints. Their positions stand for them from now on."""
        self._addresses = addresses
        self._version = -1
        self._refreshed_at = -inf

    def refresh(self, now: float) -> None:
        """Look up the objects of the endpoints again if they changed.

        Update what changes slowly, at intervals.
        """
        totals = self._signals.totals
        if self._version != totals.version:
            self._version = totals.version
            self._totals = [totals.of(address) for address in self._addresses]
        if now >= self._refreshed_at + _REFRESH_SECONDS:
            self._refreshed_at = now
            self._signals.contexts.expire()
            self._kept_seconds = self._signals.copies.kept_seconds(self._addresses)
            self._evicting = dict(self._missed())
            self._factors = factors = self._speed_factors()
            # A copy takes longer on a slow endpoint, and fewer requests use it there.
            worth = [min(1.0, 1 / factor) for factor in factors]
            self._copies_worth = worth or [1.0] * len(self._addresses)
            self._least_room = min([one.room for one in self._totals])

    def of(
        self, tokens: float, saved: dict[int, float], copied: Copied, in_use: float
    ) -> list[float]:
        """Return the cost of a request on each endpoint, by position.

        `saved` has the tokens of its prompt in the endpoint's cache, of which requests in flight
        use up to `in_use`. `copied` tokens count as saved on all others that would have the copy
        soon, see `later_savings`, and fewer of them on slow ones. Tokens that are evicted for the
        request and missed later count as its work. The costs are divided by the work of the request
        without any cache.
        """
        totals, work, own = self._totals, tokens + self._weights.answer, self._weights.own
        self._loads = loads = self._loads_for(tokens)
        if work > self._least_room:
            self._add_missing_room(work, saved, in_use)
        more, soon, idle = copied
        worth = self._copies_worth
        costs = loads.copy()
        if more:
            copies = [more * share for share in worth]
            costs = [(1 - c / work) * (x - own * c) for c, x in zip(copies, loads, strict=True)]
        if soon < inf:
            for position, load in enumerate(loads):
                if totals[position].backlog > soon:
                    costs[position] = load
        for position, known in saved.items():
            if known > more * worth[position] or totals[position].backlog > soon:
                costs[position] = (1 - known / work) * (loads[position] - own * known)
        if idle:
            for position, one in enumerate(totals):
                if not one.requests and position not in self._evicting:
                    cost = (1 - idle / work) * (loads[position] - own * idle)
                    costs[position] = min(costs[position], cost)
        for position, missed in self._evicting.items():
            known = saved.get(position, 0.0)
            if known < tokens:
                not_saved = work - max(known, more * worth[position])
                costs[position] *= 1 + missed * (tokens - known) / not_saved
        for position, factor in enumerate(self._factors):
            costs[position] *= factor
        return costs

    def with_unseen(self, position: int, cost: float) -> float:
        """Return the cost on an endpoint if it has requests that are not known yet.

        `cost` is the last result of `of` for this endpoint.
        """
        unseen = self._signals.unseen.mean
        if not unseen:
            return cost
        more = unseen * (self._signals.backlog.mean + self._busy)
        return cost * (1 + more / self._loads[position])

    def later_savings(
        self, tokens: float, saved: dict[int, float], prefix: int, shared: float
    ) -> Copied:
        """Return what a further copy of a prompt's prefix would save later.

        `prefix` is the hash of its last block, and `shared` are its tokens. The more requests will
        use a copy, the less of it the first one pays. Each use saves what prompts in flight cost
        more on endpoints with the prefix than on others. A further copy is needed only if the
        requests in flight with the prefix would fill the endpoints that have it to the mean load.

        Many uses need proof. If all endpoints with the prefix have much to do before the request, a
        copy is useful only where it is ready about as soon. On an idle endpoint it then needs none.
        """
        sharing = self._signals.contexts.sharing(prefix)
        if not sharing:
            return NOTHING
        holders = [position for position, known in saved.items() if known >= shared]
        copies = len(holders)
        if not copies or copies > sharing or copies == len(self._addresses):
            return NOTHING
        ahead = min([self._totals[position].backlog for position in holders]) - _BEHIND * shared
        filled = sharing / (copies * self._mean_known())
        if filled < 1 and ahead < 0:
            return NOTHING
        relieved = self._weights.copies * min(self._more_context(holders) / shared, 1.0)
        rate = relieved * self._signals.copies.demand(prefix) / (copies + 1)
        proven = rate * self._signals.copies.used_seconds(prefix)
        unproven = min(_UNPROVEN, _DEAR_TOKENS / shared)
        uses = min(rate * self._kept_seconds, max(proven, unproven))
        work = tokens + self._weights.answer
        most = max(0.0, work - _MORE_WORK * (work - shared))
        later = uses**2 / (uses**2 + 1) * most * min(filled, 1.0)
        return Copied(later, ahead, most) if uses and ahead >= 0 else Copied(later)

    def _mean_known(self) -> float:
        """Return the mean of the known requests in flight on an endpoint, at least 1."""
        return max(sum([one.known_requests for one in self._totals]) / len(self._totals), 1.0)

    def _more_context(self, holders: Sequence[int]) -> float:
        """Return by how much the prompts in flight count more on these endpoints than on others.

        This is the difference of the means, in tokens to compute; at least 0.
        """
        here = sum([self._totals[position].context for position in holders])
        together = sum([one.context for one in self._totals])
        number = len(holders)
        more = here / number - (together - here) / (len(self._totals) - number)
        return self._weights.context * max(0.0, more)

    def _speed_factors(self) -> Sequence[float]:
        """Return a factor for each endpoint; none if all are about equally fast.

        A slow endpoint takes longer for the work of the request and for its load. These are
        multiplied, but a part of that load is due to its slowness.
        """
        slowness = self._signals.slowness(self._addresses)
        if not slowness:
            return ()
        return [slowness.get(address, 1.0) ** _SLOWNESS_POWER for address in self._addresses]

    def _missed(self) -> Iterator[tuple[int, float]]:
        """Yield the positions of full caches, and the tokens missed later for each evicted one.

        The least recently used blocks go first. In a full cache they are the history of the session
        that has been idle for the longest time, and its next turn may still come. To compute them
        again evicts as many others, of which the same share is missed, and so on: a geometric
        series.
        """
        for position, address in enumerate(self._addresses):
            age = self._signals.prefixes.age(address)
            if age is not None:
                missed = min(self._signals.contexts.continued_after(age), _MOST_MISSED)
                if missed >= _LEAST_MISSED:
                    yield position, missed / (1 - missed)

    def _loads_for(self, tokens: float) -> list[float]:
        """Return the load of each endpoint for a request of so many tokens."""
        weights, contexts = self._weights, self._signals.contexts
        # Requests that a paused session will probably send.
        expected = contexts.continued * min(weights.returning * contexts.share_in_flight, 1)
        self._busy = busy = weights.busy / (self._usual_requests(expected) + 1)
        share, wait = weights.context, weights.own * tokens + busy
        return [
            one.backlog + busy * (one.requests + expected * one.paused) + share * one.context + wait
            for one in self._totals
        ]

    def _add_missing_room(self, needed: float, saved: dict[int, float], in_use: float) -> None:
        """Add the tokens that do not fit into the KV cache to the loads.

        The request waits until others end and free as many. A token to free counts as one to
        compute. A cached token needs room, too, unless a request in flight uses it already.
        """
        for position, one in enumerate(self._totals):
            missing = needed - one.room
            if missing > 0:
                missing -= min(saved.get(position, 0.0), in_use)
                self._loads[position] += max(missing, 0.0)

    def _usual_requests(self, expected: float) -> float:
        """Return the middle between the requests on the idlest and on the mean endpoint.

        `expected` counts for each paused session. One idle endpoint alone, such as a new one, must
        not set the scale for all.
        """
        least, together = inf, 0.0
        for one in self._totals:
            requests = one.requests + expected * one.paused
            together += requests
            if requests < least:
                least = requests
        return (least + together / len(self._totals)) / 2
