"""The costs by which PrefixCache compares endpoints.

A cost is how long a request waits on an endpoint, and how long it delays others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import inf
from typing import NamedTuple

from extproc.core.fleet.signals import Signals
from extproc.core.fleet.totals import Total
from extproc.core.fleet.weights import Weights
from extproc.core.strategies.gpu_factors import GpuFactors, gpu_factors

_MORE_TOKENS = 1.3
"""Least tokens to compute and to generate on an endpoint without the prefix, as a multiple of those
on one that has it. So if all are idle, a request goes where its prefix is."""

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

_WAITING_PROMPT = 4000.0
"""Tokens to compute that a prompt that waits counts as at least: an engine computes several short
prompts in one step."""

_LEAST_WAIT = 1.0
"""Tokens that each endpoint counts as. So of two idle endpoints that have the whole prompt, the
faster one costs less."""

_LEAST_MISSED = 0.02
"""Share of evicted tokens that are missed, below which an eviction costs nothing."""

_MOST_MISSED = 0.9
"""Highest such share that is believed: then each evicted token costs nine others."""

_TRIES = 8
"""Requests after which an endpoint with unknown times is no longer tried: its engine may not count
them."""

_REFRESH_SECONDS = 0.25
"""Seconds after which speeds, evictions and the room in caches are read again, and long pauses
end."""

_CROWD_SECONDS = 0.02
"""Seconds after which waiting prompts are counted again, and how much a paused session counts."""


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
        self._gpus = self._present = GpuFactors([], [], [], [], {}, [])
        self._refreshed_at = -inf
        self._crowded_at = -inf
        self._totals: list[Total] = []
        self._version = -1
        self._last: tuple[Sequence[float], float] = ((), 0.0)
        self._expected = 0.0
        self._crowd = 0.0
        self._least_room = inf

    def use(self, addresses: Sequence[str]) -> None:
        """Set the endpoints. Their positions stand for them from now on."""
        self._addresses = addresses
        self._version = -1
        self._refreshed_at = self._crowded_at = -inf

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
            self._gpus = gpu_factors(
                self._signals, self._addresses, self._weights.step, self._evicting
            )
            self._least_room = min([one.room for one in self._totals])
        if now >= self._crowded_at + _CROWD_SECONDS:
            self._crowded_at = now
            self._expected = self._expected_requests()
            self._crowd = self._crowding()

    @property
    def home_shares(self) -> Mapping[str, float]:
        """Return the share of home prompts that each endpoint keeps; empty if all keep all.

        While prompts wait on most endpoints, slow ones are needed, and so are their caches.
        """
        return {} if self._crowd else self._gpus.home_shares

    def of(
        self,
        tokens: float,
        saved: dict[int, float],
        copied: Copied,
        in_use: float,
        continued: Sequence[int] = (),
        not_compared: float = 0.0,
        loading: Sequence[float] = (),
    ) -> list[float]:
        """Return the cost of a request on each endpoint, by position.

        The unit is the time of a prompt token on a usual endpoint. `saved` has the tokens of its
        prompt in the endpoint's cache, of which requests in flight use up to `in_use`. `copied`
        tokens count as saved on all others that would have the copy soon, see `later_savings`, and
        fewer of them on slow ones. The request itself ends the pause of a session on the endpoints
        `continued`. Tokens after the compared part of a long prompt are probably where that part
        is, if it is more than a system prompt. So those `not_compared` only need room. `loading`
        has the tokens that loading the adapter counts as on each endpoint. It is empty if the
        request has no adapter.
        """
        weights, totals, expected = self._weights, self._totals, self._expected
        requests = [one.requests + expected * one.paused for one in totals]
        for position in continued:
            one = totals[position]
            requests[position] = one.requests + expected * (one.paused - 1)
        share = weights.batch + weights.balance / (_usual(requests) + 1)
        computed = self._computed(tokens, saved, copied)
        crowd = self._reduced_crowd()
        if loading:
            computed = [own + load for own, load in zip(computed, loading, strict=True)]
        decoding = share * weights.answer
        self._last = computed, share
        self._present = gpus = self._present_gpus()
        reading, idle, busy = weights.reading, _LEAST_WAIT, _LEAST_WAIT + weights.step
        costs = [
            prompts * (one.backlog + own * (1.0 + share * count))
            + steps * ((busy if one.requests else idle) + reading * one.context + decoding * count)
            + crowd * own
            # mypyc compiles this to a loop only without `strict`.
            for one, count, own, prompts, steps in zip(  # noqa: B905
                totals, requests, computed, gpus.prompts, gpus.steps
            )
        ]
        if crowd < self._crowd:  # loading is known from the engines, so it keeps the full factor
            for position, load in enumerate(loading):
                costs[position] += (self._crowd - crowd) * load
        for position, turns in enumerate(gpus.turns):
            costs[position] += turns
        for position, missed in self._evicting.items():
            evicted = max(0.0, tokens - saved.get(position, 0.0))
            costs[position] += gpus.prompts[position] * missed * evicted
        needed = tokens + not_compared + weights.answer
        if needed > self._least_room:
            self._add_missing_room(costs, needed, saved, in_use)
        return costs

    def later_turns(self, position: int) -> float:
        """Return the part of the last costs that is due to later turns of the session."""
        turns = self._present.turns
        return turns[position] if turns else 0.0

    def prompt_wait(self, position: int) -> float:
        """Return the part of an endpoint's last cost that is due to waiting for prompts.

        These are the backlog and the request's own prompt, also for those that will come behind it.
        """
        computed = self._last[0][position]
        wait = self._totals[position].backlog + computed
        return self._present.prompts[position] * wait + self._reduced_crowd() * computed

    def with_unseen(self, position: int, cost: float) -> float:
        """Return the cost on an endpoint if it has requests that are not known yet.

        `cost` is the last result of `of` for this endpoint. The step and the context of these
        requests are not counted.
        """
        unseen = self._signals.unseen.mean
        if not unseen:
            return cost
        (computed, share), gpus = self._last, self._present
        prompts = self._signals.backlog.mean + share * computed[position]
        steps = share * self._weights.answer
        more = gpus.prompts[position] * prompts + gpus.steps[position] * steps
        return cost + unseen * more

    def that_may_be_best(self, costs: Sequence[float], best: int, limit: float) -> set[int]:
        """Return the endpoints up to a cost that compute no more of the prompt than the best one.

        The sidecars that decide at the same moment have other prompts. They flood the least busy
        endpoint, and not the one that has this prompt in its cache.
        """
        computed, _ = self._last
        most = computed[best]
        return {p for p, cost in enumerate(costs) if cost <= limit and computed[p] <= most}

    def _present_gpus(self) -> GpuFactors:
        """Return the factors now: idle endpoints of unknown speed count as the fastest at first."""
        if not self._gpus.unknown:
            return self._gpus
        untried = [
            position
            for position in self._gpus.unknown
            if (one := self._totals[position]).sent < _TRIES and not (one.requests or one.backlog)
        ]
        return self._gpus.as_fastest(untried) if untried else self._gpus

    def _computed(self, tokens: float, saved: dict[int, float], copied: Copied) -> list[float]:
        """Return the tokens that each endpoint computes, without those that a copy saves later."""
        totals = self._totals
        more, soon, idle = copied
        found = [tokens] * len(totals)
        if more:
            found = [max(0.0, tokens - more * share) for share in self._gpus.copies]
        if soon < inf:
            for position, one in enumerate(totals):
                if one.backlog > soon:
                    found[position] = tokens
        for position, known in saved.items():
            own = tokens - known
            if own < found[position]:
                found[position] = own if own > 0 else 0.0
        if idle:
            own = max(0.0, tokens - idle)
            for position, one in enumerate(totals):
                if own < found[position] and not one.requests and position not in self._evicting:
                    found[position] = own
        return found

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
        most = max(0.0, work - _MORE_TOKENS * (work - shared))
        later = uses**2 / (uses**2 + 1) * most * min(filled, 1.0)
        return Copied(later, ahead, most) if uses and ahead >= 0 else Copied(later)

    def _mean_known(self) -> float:
        """Return the mean of the known requests in flight on an endpoint, at least 1."""
        together = 0.0
        for one in self._totals:
            together += one.known_requests
        return max(together / len(self._totals), 1.0)

    def _more_context(self, holders: Sequence[int]) -> float:
        """Return by how much the prompts in flight count more on these endpoints than on others.

        This is the difference of the means, in tokens to compute; at least 0.
        """
        here = sum([self._totals[position].context for position in holders])
        together = sum([one.context for one in self._totals])
        number = len(holders)
        more = here / number - (together - here) / (len(self._totals) - number)
        return self._weights.context * max(0.0, more)

    def _expected_requests(self) -> float:
        """Return the number of requests that a paused session counts as."""
        contexts = self._signals.contexts
        in_flight = min(self._weights.returning * contexts.share_in_flight, 1.0)
        return contexts.continued * in_flight

    def _crowding(self) -> float:
        """Return how many times more a token to compute counts, because prompts wait behind it.

        This counts the prompts on the median endpoint, without the one that it computes. So single
        endpoints with a long queue do not count: the next prompts can go elsewhere. It is the lower
        median, so of two endpoints both must have a queue. A full KV cache is in the backlog, so it
        counts as prompts, too.
        """
        usual = max(self._signals.backlog.mean, _WAITING_PROMPT)
        longer = sorted([one.backlog for one in self._totals if one.backlog > usual])
        shorter, median = len(self._totals) - len(longer), (len(self._totals) - 1) // 2
        if median < shorter:
            return 0.0
        return self._weights.crowd * (longer[median - shorter] / usual - 1)

    def _reduced_crowd(self) -> float:
        """Return the factor of crowding: less, the more requests come from unknown sidecars.

        Then less is known about the caches.
        """
        return self._crowd * (1 - self._signals.pressure.share_of_others)

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

    def _add_missing_room(
        self, costs: list[float], needed: float, saved: dict[int, float], in_use: float
    ) -> None:
        """Add the tokens that do not fit into the KV cache to the costs.

        The request waits until others end and free as many. A token to free counts as one to
        compute. A cached token needs room, too, unless a request in flight uses it already.
        """
        for position, one in enumerate(self._totals):
            missing = needed - one.room
            if missing > 0:
                missing -= min(saved.get(position, 0.0), in_use)
                costs[position] += self._present.prompts[position] * max(missing, 0.0)


def _usual(requests: list[float]) -> float:
    """Return the middle between the least and the mean number of requests on an endpoint.

    One idle endpoint alone, such as a new one, must not set the scale for all.
    """
    least, together = inf, 0.0
    for number in requests:
        together += number
        if number < least:
            least = number
    return (least + together / len(requests)) / 2
