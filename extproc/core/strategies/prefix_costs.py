"""The costs by which PrefixCache compares endpoints.

A cost is how long a request waits on an endpoint, and how long it delays others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf
from typing import NamedTuple

from extproc.core.fleet.signals import Signals
from extproc.core.fleet.totals import Total
from extproc.core.fleet.weights import Weights
from extproc.core.strategies.crowding import waiting_prompts
from extproc.core.strategies.evictions import missed_tokens
from extproc.core.strategies.gpu_factors import GpuFactors, gpu_factors
from extproc.core.strategies.prefix_copies import NOTHING, Copied, PrefixCopies
from extproc.core.strategies.tied_requests import TiedRequests

_LEAST_WAIT = 1.0
"""Tokens that each endpoint counts as. So of two idle endpoints that have the whole prompt, the
faster one costs less."""

_HERE = 0.5
"""Share of `batch` that is multiplied by the requests on the endpoint itself. The rest is
multiplied by the mean number of requests on an endpoint, because a busy one leaves later requests
to the others. On the workloads of docs/prefix-caches.md, mean TTFT is 0.5 % shorter than with 1,
and p99 2.7 %."""

_TRIES = 8
"""Requests after which an endpoint with unknown times is no longer tried: its engine may not count
them."""

_REFRESH_SECONDS = 0.25
"""Seconds after which speeds, evictions and the room in caches are read again, and long pauses
end."""

_CROWD_SECONDS = 0.02
"""Seconds after which waiting prompts are counted again, and how much a paused session counts."""

_NO_LOAD = Total()


class Work(NamedTuple):
    """The work that a request causes. Positions stand for endpoints."""

    tokens: float
    """Tokens of the compared part of its prompt."""

    cached: dict[int, float]
    """Tokens of it in the endpoints' caches."""

    copied: Copied = NOTHING
    """Tokens of it that count as saved on all other endpoints that would have the copy soon, and
    fewer on slow ones (`PrefixCopies.savings`)."""

    in_use: float = 0.0
    """Cached tokens, at most, that requests in flight use. They need no room of their own."""

    continued: Sequence[int] = ()
    """Endpoints where the request itself ends the pause of a session."""

    not_compared: float = 0.0
    """Tokens after the compared part. They are probably where that part is, if it is more than a
    system prompt, so they only need room."""

    loading: Sequence[float] = ()
    """Tokens that loading the adapter counts as on each endpoint; empty without an adapter."""


class _Terms:
    """The terms of the cost on one endpoint."""

    __slots__ = (
        *("computed", "copy_factor", "load", "prompts"),
        *("requests", "steps", "tied", "turns"),
    )

    def __init__(self) -> None:
        self.load = _NO_LOAD  # until the first refresh
        # As in `GpuFactors`.
        self.prompts = self.steps = self.copy_factor = 1.0
        self.turns = 0.0
        self.tied = 0.0
        """Requests tied to the endpoint that come while it computes a prompt token."""
        self.requests = 0.0
        """Requests in flight and those that paused sessions will probably send."""
        self.computed = 0.0
        """Tokens of the present request to compute, without those that a copy saves later."""


class PrefixCosts:
    """Costs of a request on the endpoints, which are numbered by their positions."""

    def __init__(
        self, signals: Signals, weights: Weights, tied: TiedRequests, addresses: Sequence[str]
    ) -> None:
        """Number the endpoints by their positions in `addresses`."""
        self._signals = signals
        self._weights = weights
        self._tied = tied
        self._addresses = addresses
        self._terms = [_Terms() for _ in addresses]
        self._evicting: Mapping[int, float] = {}
        self._gpus = GpuFactors([], [], [], [], {}, [])
        self._refreshed_at = -inf
        self._crowded_at = -inf
        self._version = -1
        self._here = 0.0
        self._decoding = 0.0
        self._expected = 0.0
        self._crowd = 0.0
        self._least_room = inf
        self.kv_usage = 0.0
        """Mean share of the KV caches that running requests fill."""
        self.copies = PrefixCopies(signals, weights)
        """The savings by further copies of prefixes."""

    def refresh(self, now: float) -> None:
        """Look up the objects of the endpoints again if they changed.

        Update what changes slowly, at intervals.
        """
        totals = self._signals.totals
        if self._version != totals.version:
            self._version = totals.version
            for address, one in zip(self._addresses, self._terms, strict=True):
                one.load = totals.of(address)
            self.copies.use([one.load for one in self._terms])
        if now >= self._refreshed_at + _REFRESH_SECONDS:
            self._refreshed_at = now
            self._signals.contexts.expire()
            self.copies.refresh(self._addresses)
            self._evicting = dict(missed_tokens(self._signals, self._addresses))
            self._compare_gpus()
            self._measure_tied(now)
            self._least_room = min([one.load.room for one in self._terms])
            self.kv_usage = sum([one.load.kv_usage for one in self._terms]) / len(self._terms)
        if now >= self._crowded_at + _CROWD_SECONDS:
            self._crowded_at = now
            self._expected = self._expected_requests()
            loads = [one.load for one in self._terms]
            waiting = waiting_prompts(loads, self._signals.backlog.mean)
            self._crowd = self._weights.crowd * waiting

    @property
    def home_shares(self) -> Mapping[str, float]:
        """Return the share of home prompts that each endpoint keeps; empty if all keep all.

        While prompts wait on most endpoints, slow ones are needed, and so are their caches.
        """
        return {} if self._crowd else self._gpus.home_shares

    def of(self, work: Work) -> list[float]:
        """Return the cost of a request on each endpoint, by position.

        The unit is the time of a prompt token on a usual endpoint.
        """
        weights, terms = self._weights, self._terms
        self._count_requests(work.continued)
        least, mean = self._least_and_mean_requests()
        balance = weights.balance / ((least + mean) / 2 + 1)
        self._here = here = _HERE * weights.batch + balance
        self._decoding = decoding = (weights.batch + balance) * weights.answer
        everywhere = 1.0 + (1 - _HERE) * weights.batch * mean  # with the token's own time
        self._count_computed(work)
        for position, more in enumerate(work.loading):
            terms[position].computed += more
        if self._gpus.unknown:
            self._try_unknown()
        crowd, reading = self._reduced_crowd(), weights.reading
        idle, busy = _LEAST_WAIT, _LEAST_WAIT + weights.step
        costs = [
            one.prompts * (one.load.backlog + one.computed * (everywhere + here * one.requests))
            + one.steps
            * (
                # Less than one request is a mean of others': the probability of a step.
                (busy if one.load.requests >= 1 else idle + weights.step * one.load.requests)
                + reading * one.load.context
                + decoding * one.requests
            )
            + crowd * one.computed
            for one in terms
        ]
        if crowd < self._crowd:  # loading is known from the engines, so it keeps the full factor
            for position, more in enumerate(work.loading):
                costs[position] += (self._crowd - crowd) * more
        if self._gpus.turns:
            for position, one in enumerate(terms):
                costs[position] += one.turns
        if work.copied is not NOTHING:
            self._add_delay_by_copy(costs, work)
        for position, missed in self._evicting.items():
            evicted = max(0.0, work.tokens - work.cached.get(position, 0.0))
            costs[position] += terms[position].prompts * missed * evicted
        needed = work.tokens + work.not_compared + weights.answer
        if needed > self._least_room:
            self._add_missing_room(costs, needed, work)
        return costs

    def later_turns(self, position: int) -> float:
        """Return the part of the last costs that is due to later turns of the session."""
        return self._terms[position].turns

    def prompt_wait(self, position: int) -> float:
        """Return the part of an endpoint's last cost that is due to waiting for prompts.

        These are the backlog and the request's own prompt, also for those that will come behind it.
        """
        one = self._terms[position]
        wait = one.load.backlog + one.computed
        return one.prompts * wait + self._reduced_crowd() * one.computed

    def with_unseen(self, position: int, cost: float) -> float:
        """Return the cost on an endpoint if it has requests that are not known yet.

        `cost` is the last result of `of` for this endpoint. The step and the context of these
        requests, and their part of the mean number of requests, are not counted.
        """
        unseen = self._signals.unseen.mean
        if not unseen:
            return cost
        one = self._terms[position]
        prompts = self._signals.backlog.mean + self._here * one.computed
        return cost + unseen * (one.prompts * prompts + one.steps * self._decoding)

    def that_may_be_best(self, costs: Sequence[float], best: int, limit: float) -> set[int]:
        """Return the endpoints up to a cost that compute no more of the prompt than the best one.

        The sidecars that decide at the same moment have other prompts. They flood the least busy
        endpoint, and not the one that has this prompt in its cache.
        """
        terms = self._terms
        most = terms[best].computed
        return {p for p, cost in enumerate(costs) if cost <= limit and terms[p].computed <= most}

    def _compare_gpus(self) -> None:
        """Update how the endpoints differ."""
        step = self._weights.step
        self._gpus = gpus = gpu_factors(self._signals, self._addresses, step, self._evicting)
        for position, one in enumerate(self._terms):
            one.prompts, one.steps = gpus.prompts[position], gpus.steps[position]
            one.copy_factor = gpus.copies[position]
            one.turns = gpus.turns[position] if gpus.turns else 0.0

    def _measure_tied(self, now: float) -> None:
        """Update how many requests are tied to each endpoint."""
        self._tied.fade(now)
        for address, one in zip(self._addresses, self._terms, strict=True):
            speed = self._signals.speeds.tokens(address, 1.0)
            one.tied = self._tied.rate(address) / speed if speed else 0.0

    def _try_unknown(self) -> None:
        """Let endpoints of unknown speed count as the fastest at first, while they are idle."""
        gpus = self._gpus
        fastest = min(gpus.prompts), min(gpus.steps)
        for position in gpus.unknown:
            one = self._terms[position]
            load = one.load
            if load.sent < _TRIES and not (load.has_requests or load.backlog):
                one.prompts, one.steps = fastest
                one.turns = 0.0
            else:
                one.prompts, one.steps = gpus.prompts[position], gpus.steps[position]
                one.turns = gpus.turns[position]

    def _count_requests(self, continued: Sequence[int]) -> None:
        """Count the requests in flight and those that paused sessions will probably send.

        The request itself ends the pause of a session on the endpoints `continued`.
        """
        expected = self._expected
        for one in self._terms:
            one.requests = one.load.requests + expected * one.load.paused
        for position in continued:
            one = self._terms[position]
            one.requests = one.load.requests + expected * (one.load.paused - 1)

    def _least_and_mean_requests(self) -> tuple[float, float]:
        """Return the least and the mean number of requests on an endpoint.

        The usual number is the middle between them: one idle endpoint alone, such as a new one,
        must not set the scale for all.
        """
        least, together = inf, 0.0
        for one in self._terms:
            together += one.requests
            if one.requests < least:
                least = one.requests
        return least, together / len(self._terms)

    def _count_computed(self, work: Work) -> None:
        """Count the tokens that each endpoint computes, without those that a copy saves later."""
        tokens = work.tokens
        more, soon, idle = work.copied
        for one in self._terms:
            one.computed = tokens
            if more and one.load.backlog <= soon:
                one.computed = max(0.0, tokens - more * one.copy_factor)
        for position, known in work.cached.items():
            one, own = self._terms[position], tokens - known
            if own < one.computed:
                one.computed = own if own > 0 else 0.0
        if idle:
            own = max(0.0, tokens - idle)
            for position, one in enumerate(self._terms):
                is_free = not one.load.has_requests and position not in self._evicting
                if is_free and own < one.computed:
                    one.computed = own

    def _expected_requests(self) -> float:
        """Return the number of requests that a paused session counts as."""
        contexts = self._signals.contexts
        in_flight = min(self._weights.returning * contexts.share_in_flight, 1.0)
        return contexts.continued * in_flight

    def _reduced_crowd(self) -> float:
        """Return how many times more a token to compute counts, because prompts wait behind it.

        It counts less, the more requests come from unknown sidecars: then less is known about the
        caches.
        """
        return self._crowd * (1 - self._signals.pressure.share_of_others)

    def _add_delay_by_copy(self, costs: list[float], work: Work) -> None:
        """Add the delay of requests that are tied to an endpoint while it computes a copy.

        The tokens that a copy saves later count as saved already, but they take their time now.
        """
        most = self._tied.tokens
        for position, one in enumerate(self._terms):
            if one.tied:
                own = max(0.0, work.tokens - work.cached.get(position, 0.0))
                loading = work.loading[position] if work.loading else 0.0
                saved = own + loading - one.computed
                wait = min(one.load.backlog + own / 2, most)
                costs[position] += one.prompts * one.tied * saved * wait

    def _add_missing_room(self, costs: list[float], needed: float, work: Work) -> None:
        """Add the tokens that do not fit into the KV cache to the costs.

        The request waits until others end and free as many. A token to free counts as one to
        compute. A cached token needs room, too, unless a request in flight uses it already.
        """
        for position, one in enumerate(self._terms):
            missing = needed - one.load.room
            if missing > 0:
                missing -= min(work.cached.get(position, 0.0), work.in_use)
                costs[position] += one.prompts * max(missing, 0.0)
