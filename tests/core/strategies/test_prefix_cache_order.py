from __future__ import annotations

from collections.abc import Mapping, Sequence

from hypothesis import given
from hypothesis import strategies as st

from extproc.core.fleet.endpoint import Endpoint
from extproc.core.fleet.subset import Subset, subset_of
from extproc.core.fleet.weights import WEIGHTS
from extproc.core.strategies import Query, Reason
from tests.core.builders import thorough
from tests.core.strategies.prefix_cache_replicas import (
    TOKENS,
    Replicas,
    query,
)


class TestSubset:
    def test_only_its_endpoints_are_candidates(self) -> None:
        replicas = Replicas(6)
        home = replicas.serve(query("prompt")).endpoint
        allowed = [e.address for e in replicas.others(home)][:3]
        order = replicas.order(query("prompt"), replicas.snapshot.restricted(subset(allowed)))
        assert {candidate.endpoint.address for candidate in order} == set(allowed)
        assert [candidate.hops for candidate in order] == [0, 1, 2]
        assert {candidate.prediction for candidate in order} == {(4000, 0)}

    def test_home_endpoint_is_kept_if_it_is_included(self) -> None:
        replicas = Replicas(6)
        home = replicas.serve(query("prompt")).endpoint
        allowed = [home.address, next(replicas.others(home)).address]
        order = replicas.order(query("prompt"), replicas.snapshot.restricted(subset(allowed)))
        assert order[0].endpoint == home

    def test_reason_is_cold_if_no_included_endpoint_has_the_prompt(self) -> None:
        replicas = Replicas(6)
        home = replicas.serve(query("prompt")).endpoint
        allowed = [e.address for e in replicas.others(home)]
        order = replicas.order(query("prompt"), replicas.snapshot.restricted(subset(allowed)))
        assert {candidate.reason for candidate in order} == {Reason.COLD}

    def test_does_not_change_an_iteration_that_has_started(self) -> None:
        # Orders are lazy: the second candidate may be computed after another request's first.
        replicas = Replicas(6)
        begun = replicas.strategy.rank(query("prompt"), replicas.snapshot, replicas.ledger.loads)
        first = next(begun)
        allowed = subset(replicas.addresses[-2:])
        assert len(replicas.order(query("other"), replicas.snapshot.restricted(allowed))) == 2
        rest = [candidate.endpoint for candidate in begun]
        assert {first.endpoint, *rest} == set(replicas.snapshot.endpoints)


def subset(addresses: Sequence[str]) -> Subset:
    return subset_of(tuple(addresses))


@st.composite
def states(draw: st.DrawFn) -> tuple[Replicas, Query]:
    """Draw replicas with any load and any cached beginnings of a prompt, and a request for it."""
    weights = WEIGHTS._replace(nearly=draw(st.sampled_from([1.0, WEIGHTS.nearly])))
    replicas = Replicas(draw(st.integers(1, 6)), replication=4, weights=weights)
    asked = query("prompt", draw(st.integers(0, 20)) * TOKENS)
    prompt = asked.prompt
    assert prompt is not None
    for endpoint in replicas.snapshot.endpoints:
        replicas.load(endpoint, draw(st.integers(0, 5)), draw(st.sampled_from([0, 10, 5000])))
        cached = draw(st.integers(0, len(prompt.blocks)))
        replicas.signals.prefixes.sent(endpoint.address, prompt.blocks[:cached])
    if draw(st.booleans()):
        asked = asked._replace(key=None)
    return replicas, asked._replace(prompt=draw(st.sampled_from([prompt, prompt, None])))


class TestOrder:
    @thorough
    @given(states())
    def test_contains_every_endpoint_once(self, state: tuple[Replicas, Query]) -> None:
        replicas, asked = state
        order = replicas.order(asked)
        assert sorted(c.endpoint.address for c in order) == sorted(replicas.addresses)
        assert [c.hops for c in order] == list(range(len(order)))

    @thorough
    @given(states())
    def test_endpoint_that_is_better_in_everything_comes_first(
        self, state: tuple[Replicas, Query]
    ) -> None:
        replicas, asked = state
        # Without the tolerance for nearly equal costs.
        replicas.strategy._weights = replicas.strategy._weights._replace(nearly=1.0)
        ranked = [self.merits(replicas, asked, c.endpoint) for c in replicas.order(asked)]
        for place, one in enumerate(ranked):
            for later in ranked[place + 1 :]:
                better = all(x >= y for x, y in zip(later, one, strict=True))
                assert not better or later == one

    def merits(self, replicas: Replicas, asked: Query, endpoint: Endpoint) -> Sequence[float]:
        cached: Mapping[str, int] = {}
        if asked.prompt is not None:
            cached = replicas.signals.prefixes.matches(asked.prompt.blocks)
        requests = replicas.ledger.loads.get(endpoint.address, 0)
        backlog = replicas.signals.backlog.tokens.get(endpoint.address, 0.0)
        return cached.get(endpoint.address, 0), -requests, -backlog

    @thorough
    @given(states())
    def test_every_endpoint_has_its_reason(self, state: tuple[Replicas, Query]) -> None:
        replicas, asked = state
        order = replicas.order(asked)
        if asked.prompt is None:
            assert {candidate.reason for candidate in order} == {Reason.NO_PREFIX}
            return
        cached = [c.prediction.cached_tokens if c.prediction else -1.0 for c in order]
        for candidate, tokens in zip(order, cached, strict=True):
            most = Reason.CACHED if tokens == max(cached) else Reason.SPARED
            assert candidate.reason is (most if max(cached) else Reason.COLD)

    def test_is_empty_without_endpoints(self) -> None:
        assert Replicas(0).order(query("prompt")) == []
        assert Replicas(0).order(Query()) == []


class TestSecondCandidate:
    def test_is_the_next_on_the_ring_among_equal_endpoints(self) -> None:
        replicas = Replicas(8)
        for number in range(20):
            asked = query(f"prompt {number}")
            assert asked.key is not None
            order = [candidate.endpoint for candidate in replicas.order(asked)]
            assert order == replicas.ring_from(asked.key)
