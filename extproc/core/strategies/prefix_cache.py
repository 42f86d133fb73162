"""PrefixCache: the endpoint where a request waits least and delays others least.

The sidecar remembers the blocks of the prompts that it sent to each endpoint, and what is still
being computed there. vLLM's metrics report the sizes of the caches, which responses have started,
and the load from other sidecars.

    for each endpoint e that is eligible for the request

        own    = tokens of the prompt, without those that are in e's cache (the prefix index),
                 or that are a response which e computed                   (fleet.turns)
                 or that other sidecars have probably sent there           (e is a home endpoint)
                 or that a copy on e would save for later requests         (fleet.copies)
               + tokens that loading the adapter counts as                 (adapter_loads)
        wait   = backlog(e) + tokens that do not fit into e's KV cache     (fleet.pressure)
        delay  = (batch * (requests(e) + mean requests) / 2
                 + balance * requests(e)) * own
                 + tokens evicted for it that are missed later             (fleet.prefix_index)
        steps  = step * min(1, requests(e))
                 + (batch + balance) * requests(e) * answer
                 + reading * tokens of the prompts in flight on e          (fleet.contexts)
        later  = crowd * own * prompts that wait on the median endpoint
        turns  = expected turns * what a usual one costs more than on the cheapest endpoint
        tied   = if it makes a copy: delay of requests whose prefixes
                 only e has                                                (tied_requests)
        cost   = prompts' slowness(e) * (wait + own + delay)               (fleet.engine_times)
                 + steps' slowness(e) * steps + later + turns + tied

        Here `balance` is the weight divided by the usual requests + 1.

    choose the first endpoint on the ring among those with nearly the lowest cost

Backlog and requests are those that the sidecar knows, plus others according to the engines'
metrics (`extproc.core.fleet.pressure`). Between two scrapes, the backlog falls by the speed of the
endpoint. Short prompts cost at least a step of the engine (`extproc.core.fleet.backlog`). A request
in an engine's queue counts as several, and a full KV cache or batch as tokens to compute. Requests
include those that paused sessions will probably send (`extproc.core.fleet.contexts`), except the
session that the request continues.

The cost is the time to the request's first token, plus the time by which it delays others: those in
the batch, those that will wait behind it, and those whose prefixes it evicts. The unit is the time
of a prompt token on a usual endpoint. With steady flows, routing by marginal delay minimizes the
total delay (Gallager: "A Minimum Delay Routing Algorithm Using Distributed Computation", 1977).
This cost is an estimate of it.

The more prompts wait, the more each token to compute costs. While most endpoints are idle, a
request goes where it starts soonest. In a busy fleet it goes where its prefix is. The prompts that
will wait may come to any endpoint, so `later` is not multiplied by the slowness of this one. The
share of requests that come from unknown sidecars is subtracted from its factor, except for loading.
An engine computes the tokens of a prompt together, and in each step it reads its memory for the
responses. GPUs differ in both, so prompts and steps have factors of their own. In a mixed fleet,
`turns` adds the later turns of the session, and an idle endpoint of unknown speed counts as the
fastest one (`extproc.core.strategies.gpu_factors`).

Sidecars that share no state agree through the ring: the first endpoints after a prompt's key are
its home endpoints, so other sidecars have probably sent similar prompts there
(`extproc.core.strategies.home_endpoints`). The more requests come from other sidecars, the more
likely this is. A prompt that contains a response had a previous turn
(`extproc.core.request.previous_turn`). If this sidecar has not sent it, another one has. If prompts
rarely repeat earlier ones, less is expected there.

Nearly means up to 5 % more. If other sidecars share no state, a request may also wait longer for
prompts, by 70 % times the share of their requests, and less if prompts rarely repeat earlier ones.
This is consistent hashing with bounded loads, with its own constant: sidecars with similar
information choose the same endpoint.

Sidecars that share their state know each other's prompts and requests, but some milliseconds late.
For them, nearly also covers endpoints that have as much of the prompt, and would be the best if the
requests that are not known yet went to the present best one (`extproc.core.fleet.unseen`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import islice
from math import inf
from random import Random

from extproc.core.fleet.endpoint import Endpoint, Snapshot
from extproc.core.fleet.sent_request import SentRequest
from extproc.core.fleet.signals import Signals
from extproc.core.fleet.weights import WEIGHTS, Weights
from extproc.core.schema import SignalsSpec
from extproc.core.strategies.adapter_loads import load_tokens
from extproc.core.strategies.base import Candidate, Prediction, Query, Reason, Strategy
from extproc.core.strategies.cached_prompt import CachedPrompt
from extproc.core.strategies.home_endpoints import PLACES, HomeEndpoints, Homes
from extproc.core.strategies.prefix_copies import NOTHING
from extproc.core.strategies.prefix_costs import Work
from extproc.core.strategies.prefix_views import Views
from extproc.core.strategies.tied_requests import TiedRequests

_PREVIOUS = 0.95
"""Share of a conversation's previous turn that counts as cached on its home endpoint if another
sidecar has sent that turn. So an endpoint that is known to have more of it costs less."""

_WARM = 0.75
"""Share of the deepest cached prefix from which an endpoint counts as warm for a prompt."""

_MOST_WARM = 16
"""Warm endpoints from which it does not matter which of them serves the prompt."""

_FEW = 0.1
"""Share of the endpoints up to which it is faster to look for them alone on the ring."""

_NEARLY_ALONE = 0.05
"""Share of the lowest cost by which other endpoints may always cost more, so that sidecars with
little traffic agree."""


class PrefixCache(Strategy):
    """Chooses by cached blocks and load.

    `by_header`: the request's key is a header, and has priority over the system prompt.
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
        self._homes = HomeEndpoints(rng, by_header=by_header)
        self._weights = weights
        self._tied = TiedRequests(signals.clock())
        self._views = Views(signals, weights, self._tied)
        self._view = self._views.of(())
        self._found = CachedPrompt.of(Query(), {}, signals)  # that was ranked last
        self._agreement = 0.0  # probability that another sidecar has sent a prompt like this one
        self._stale: Collection[str] = ()
        self._refreshed_at = -inf

    def rank(
        self, query: Query, snapshot: Snapshot, loads: Mapping[str, int]
    ) -> Iterator[Candidate]:
        eligible = snapshot.eligible(query.adapter)
        if not eligible:
            return
        self._use_endpoints(eligible)
        self._refresh_signals()
        found = self._found = CachedPrompt.of(query, self._view.trusted, self._signals)
        cached = expected = found.cached()
        others = self._signals.pressure.share_of_others
        self._agreement = others and others * self._homes.repeated_share(others)
        homes = self._homes_of(found, query, alone=not others)
        if others:
            shares = self._view.costs.home_shares
            expected = dict(cached)
            self._add_homes(expected, found, homes.walk(snapshot, query.adapter, shares))
        costs = self._view.costs.of(self._work(found, expected, query.adapter))
        most = max(cached.values(), default=0.0)
        for hops, position in enumerate(self._order(costs, query, snapshot, homes.key)):
            known = cached.get(position, 0.0)
            if query.prompt is None:
                yield Candidate(eligible[position], hops, Reason.NO_PREFIX)
            else:
                prediction = Prediction(found.tokens, known)
                yield Candidate(eligible[position], hops, _reason(known, most), prediction)

    def describe(self, query: Query, chosen: Candidate) -> SentRequest:
        """Return the prompt and the adapter, which the endpoint will have in its memory.

        The request counts for its system prompt.
        """
        prompt, prediction = query.prompt, chosen.prediction
        if prompt is None or prediction is None:
            return SentRequest(query.adapter)
        found = self._found
        self._homes.sent(prompt, found.repeated_blocks)
        position = self._view.positions.get(chosen.endpoint.address, -1)
        if found.depths.get(position, 0) == found.deepest > 0:
            self._tied.sent(chosen.endpoint.address, found.tokens, found.tied_tokens)
        return SentRequest(
            query.adapter,
            (prompt.blocks, *prompt.other_chains),
            found.prefix,
            prediction.prompt_tokens,
            prediction.prompt_tokens - prediction.cached_tokens,
            prompt.turn,
        )

    def homes(self, query: Query, snapshot: Snapshot) -> tuple[str, ...]:
        """Return the endpoints with at least three quarters of what the best one has of it."""
        eligible = snapshot.eligible(query.adapter)
        if query.prompt is None or not eligible:
            return ()
        self._use_endpoints(eligible)
        cached = CachedPrompt.of(query, self._view.trusted, self._signals).cached()
        enough = max(cached.values(), default=0.0) * _WARM
        warm = [position for position, tokens in cached.items() if tokens >= enough]
        return tuple([self._view.addresses[p] for p in warm]) if len(warm) <= _MOST_WARM else ()

    def _use_endpoints(self, eligible: Sequence[Endpoint]) -> None:
        """Number the eligible endpoints: their positions stand for them in costs and depths."""
        if eligible is not self._view.eligible:  # usually the same object as before
            self._view = self._views.of(eligible)
        self._view.trust(self._stale)

    def _refresh_signals(self) -> None:
        """Drop stale information, at intervals.

        An endpoint that stops reporting metrics while others report may hang. Requests whose
        prompts it has would all go there, so its cache counts as empty.
        """
        now = self._signals.clock()
        self._signals.backlog.advance()
        self._view.costs.refresh(now)
        max_age = self._spec.stale_after_seconds
        if now >= self._refreshed_at + max_age / 3:
            self._refreshed_at = now
            self._signals.pressure.expire(now - max_age)
            self._stale = self._signals.stale(max_age)
            self._view.trust(self._stale)

    def _homes_of(self, found: CachedPrompt, query: Query, *, alone: bool) -> Homes:
        """Return the home endpoints of the prompt. `alone` if no other sidecar sends requests."""
        return self._homes.of(
            query,
            found.prompt,
            len(self._view.eligible),
            everywhere=self._all_have(found.prompt.system_blocks, found.depths),
            alone=alone,
            kv_usage=self._view.costs.kv_usage,
        )

    def _work(self, found: CachedPrompt, cached: dict[int, float], adapter: str) -> Work:
        """Return the work that the request causes. `cached` has the tokens in each cache."""
        copied, in_use, continued = NOTHING, 0.0, list[int]()
        compared, prefix = found.compared_tokens, found.prefix
        if prefix is not None:
            shared = found.per_block * found.deepest
            copied = self._view.costs.copies.savings(compared, cached, prefix, shared)
            in_use = shared if self._signals.contexts.sharing(prefix) else 0.0
            if found.has_history:
                continued = self._continued(found)
        loading: Sequence[float] = ()
        if adapter:
            residency = self._signals.residency
            loading = load_tokens(residency, adapter, self._view.addresses, self._stale)
        not_compared = found.tokens - compared
        return Work(compared, cached, copied, in_use, continued, not_compared, loading)

    def _continued(self, found: CachedPrompt) -> list[int]:
        """Return the positions where the prompt continues a session that counts as paused."""
        signals, positions = self._signals, list[int]()
        for position, depth in reversed(found.depths.items()):
            if depth < found.deepest:
                break
            address = self._view.addresses[position]
            run = signals.prefixes.run_ending(address, found.prompt.blocks, depth)
            if run and signals.contexts.pauses((address, run)):
                positions.append(position)
        return positions

    def _all_have(self, blocks: int, depths: Mapping[int, int]) -> bool:
        """Return True if every endpoint has this number of the prompt's blocks."""
        return len(depths) == len(self._view.addresses) and min(depths.values()) >= blocks

    def _add_homes(
        self, cached: dict[int, float], found: CachedPrompt, ring: Iterator[Endpoint]
    ) -> None:
        """Add the tokens that other sidecars have probably sent to the prompt's home endpoints.

        `ring` begins with these endpoints.
        """
        sent = self._agreement * found.compared_tokens
        if found.deepest < found.prompt.previous_blocks:  # another sidecar has sent that turn
            sent = max(sent, _PREVIOUS * found.per_block * found.prompt.previous_blocks)
        expected = self._weights.home * sent
        for endpoint in islice(ring, PLACES):
            position = self._view.trusted.get(endpoint.address)
            if position is not None and expected > cached.get(position, 0.0):
                cached[position] = expected
            expected /= 2

    def _order(
        self, costs: list[float], query: Query, snapshot: Snapshot, home: int
    ) -> Iterator[int]:
        """Yield positions, the best first. Sets the costs of those positions to infinity."""
        best, following = _two_lowest(costs)
        lowest = costs[best]
        if not lowest < inf:  # no endpoint has a cost, and any is better than none
            yield from range(len(costs))
            return
        limit = lowest + self._tolerance(best, lowest)
        likely = self._view.costs.with_unseen(best, lowest)
        if costs[following] > max(limit, likely):
            costs[best] = inf
            yield best
        else:
            positions = self._view.positions  # a request may replace them
            near = {p for p, cost in enumerate(costs) if cost <= limit}
            if likely > limit:
                near |= self._view.costs.that_may_be_best(costs, best, likely)
            for endpoint in self._on_ring(near, query, snapshot, home):
                position = positions[endpoint.address]
                if position in near:
                    costs[position] = inf
                    yield position
            following = costs.index(min(costs))
        while costs[following] < inf:
            costs[following] = inf
            yield following
            following = costs.index(min(costs))

    def _tolerance(self, position: int, lowest: float) -> float:
        """Return by how much other endpoints may cost more than the best one."""
        more = self._weights.nearly - 1
        if not more:
            return 0.0
        alone = _NEARLY_ALONE * (lowest - self._view.costs.later_turns(position))
        if not self._agreement:
            return alone
        # Without the cost of responses: the same share of it could be more than fits into a batch.
        return max(alone, more * self._agreement * self._view.costs.prompt_wait(position))

    def _on_ring(
        self, positions: Collection[int], query: Query, snapshot: Snapshot, home: int
    ) -> Iterator[Endpoint]:
        """Return these endpoints, perhaps among others, clockwise from the key on the ring."""
        if len(positions) < _FEW * len(self._view.eligible):
            return snapshot.among(home, [self._view.eligible[p].name for p in positions])
        return snapshot.walk(home, query.adapter)


def _two_lowest(costs: list[float]) -> tuple[int, int]:
    """Return the positions of the lowest cost and of the one after it; the same if only one."""
    best = following = 0
    lowest = next_lowest = inf
    for position, cost in enumerate(costs):
        if cost < next_lowest:
            if cost < lowest:
                best, following = position, best
                lowest, next_lowest = cost, lowest
            else:
                following, next_lowest = position, cost
    return best, following


def _reason(cached: float, most: float) -> Reason:
    if not most:
        return Reason.COLD
    return Reason.CACHED if cached == most else Reason.SPARED
