from __future__ import annotations

from dataclasses import replace
from itertools import islice, permutations
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.core.fleet.endpoint import Snapshot
from extproc.core.fleet.subset import Subset, subset_of
from extproc.core.schema import LoadBalancingSpec, StrategyName
from extproc.core.strategies import Candidate, Query, Reason
from tests.core.builders import balancing, endpoint, endpoints, strategy_of, thorough

A, B, C = endpoint("a", "sql"), endpoint("b", "sql", "law"), endpoint("c")


def test_snapshot_does_not_depend_on_the_order_of_endpoints() -> None:
    for arrival in permutations([A, B, C]):
        snapshot = Snapshot.of(arrival)
        assert snapshot.endpoints == (A, B, C)
        assert list(snapshot.ring.walk(0)) == list(Snapshot.of([A, B, C]).ring.walk(0))


def test_all_endpoints_are_eligible_without_an_adapter() -> None:
    assert Snapshot.of([A, B, C]).eligible("") == (A, B, C)


def test_all_adapters_that_every_endpoint_has_share_their_endpoints() -> None:
    snapshot = Snapshot.of([endpoint("a", "sql", "law"), endpoint("b", "sql", "law")])
    assert snapshot.eligible("sql") is snapshot.eligible("law") is snapshot.eligible("")


def test_endpoints_with_the_adapter_are_eligible() -> None:
    snapshot = Snapshot.of([A, B, C])
    assert snapshot.eligible("sql") == (A, B)
    assert snapshot.eligible("law") == (B,)
    assert snapshot.eligible("unheard-of") == ()


def test_walk_yields_eligible_endpoints_in_ring_order() -> None:
    snapshot = Snapshot.of([A, B, C])
    for key in (0, 2**63, 2**64 - 1):
        on_ring = list(snapshot.ring.walk(key))
        assert list(snapshot.walk(key, "")) == on_ring
        assert list(snapshot.walk(key, "sql")) == [e for e in on_ring if e is not C]
        assert list(snapshot.walk(key, "unheard-of")) == []


_Asked = st.tuples(st.sampled_from([1, 2**63]), st.sampled_from(["", "sql"]), st.integers(1, 4))


@given(st.lists(st.tuples(_Asked, st.booleans()), max_size=20))
def test_the_first_endpoints_are_those_of_the_walk_in_any_order_of_questions(
    asked: list[tuple[tuple[int, str, int], bool]],
) -> None:
    whole = Snapshot.of([A, B, C], 16)
    restricted = whole.restricted(subset_of((B.address, C.address)))
    for (key, adapter, number), is_whole in asked:
        snapshot = whole if is_whole else restricted
        walk = islice(snapshot.walk(key, adapter), number)
        assert snapshot.first(key, adapter, number) == tuple(one.name for one in walk)


def test_a_snapshot_keeps_a_bounded_number_of_first_endpoints() -> None:
    snapshot = Snapshot.of([A, B, C], 16)
    for key in range(1_000):
        snapshot.first(key, "", 2)
    assert len(snapshot._first) <= 256


def test_each_endpoint_has_replication_virtual_nodes() -> None:
    assert len(Snapshot.of([A, B, C], replication=10).ring) == 30


class TestRestrictedSnapshot:
    def test_has_only_allowed_endpoints(self) -> None:
        fleet = endpoints(4)
        snapshot = Snapshot.of(fleet).restricted(subset_of((fleet[1].address, fleet[3].address)))
        assert snapshot.eligible("") == (fleet[1], fleet[3])
        assert snapshot.endpoints == (fleet[1], fleet[3])

    def test_has_only_allowed_endpoints_with_the_adapter(self) -> None:
        one, two, three = (
            replace(e, adapters=adapters)
            for e, adapters in zip(
                endpoints(3),
                [frozenset({"sql"}), frozenset({"sql", "law"}), frozenset[str]()],
                strict=True,
            )
        )
        snapshot = Snapshot.of([one, two, three]).restricted(
            subset_of((two.address, three.address))
        )
        assert snapshot.eligible("sql") == (two,)
        assert snapshot.eligible("law") == (two,)
        assert list(snapshot.walk(7, "sql")) == [two]
        assert snapshot.eligible("unheard-of") == ()

    @thorough
    @given(st.integers(0, 2**64 - 1), st.sets(st.integers(0, 7)))
    def test_walk_keeps_the_order_of_the_whole_ring(self, key: int, kept: set[int]) -> None:
        fleet = endpoints(8)
        whole = Snapshot.of(fleet)
        allowed = {fleet[i] for i in kept}
        snapshot = whole.restricted(subset_of(tuple(e.address for e in allowed)))
        assert list(snapshot.walk(key, "")) == [e for e in whole.walk(key, "") if e in allowed]
        assert set(snapshot.endpoints) == allowed

    def test_is_the_same_object_for_equal_subsets(self) -> None:
        whole = Snapshot.of(endpoints(4))
        once, again = (Subset(frozenset({"10.0.0.1:8000"}), frozenset()) for _ in range(2))
        assert whole.restricted(once) is whole.restricted(again)

    def test_is_the_whole_one_if_all_endpoints_are_allowed(self) -> None:
        whole = Snapshot.of(endpoints(4))
        assert whole.restricted(subset_of(tuple(e.address for e in whole.endpoints))) is whole

    def test_few_are_kept(self) -> None:
        whole = Snapshot.of(endpoints(4))
        for port in range(100):
            whole.restricted(Subset(frozenset({f"10.0.0.1:{port}"}), frozenset()))
        assert len(whole._restricted) <= 16

    def test_shares_the_ring(self) -> None:
        whole = Snapshot.of(endpoints(4))
        assert whole.restricted(subset_of(("10.0.0.1",))).ring is whole.ring

    @pytest.mark.parametrize("strategy", get_args(StrategyName))
    @pytest.mark.parametrize("key", [None, 7])
    def test_is_respected_by_every_strategy(self, strategy: StrategyName, key: int | None) -> None:
        fleet = endpoints(6)
        kept = fleet[1], fleet[4]
        snapshot = Snapshot.of(fleet).restricted(subset_of(tuple(e.address for e in kept)))
        ranking = strategy_of(balancing(strategy))
        for loads in ({}, {e.address: i for i, e in enumerate(fleet)}, {kept[0].address: 50}):
            order = list(ranking.rank(Query(key=key), snapshot, loads))
            assert {candidate.endpoint for candidate in order} == set(kept)
            assert [candidate.hops for candidate in order] in ([0, 1], [1, 0])

    def test_bounds_the_load_by_the_mean_of_allowed_endpoints(self) -> None:
        fleet = endpoints(6)
        kept = fleet[1], fleet[4]
        snapshot = Snapshot.of(fleet).restricted(subset_of(tuple(e.address for e in kept)))
        ranking = strategy_of(LoadBalancingSpec(strategy="PrefixHash"))
        home, other = snapshot.walk(7, "")
        # The mean of the two: (10 + 1) / 2 * 1.25 < 7, although all others are busy.
        loads = {**{e.address: 1000 for e in fleet}, home.address: 7, other.address: 3}
        first = next(ranking.rank(Query(key=7), snapshot, loads))
        assert first == Candidate(other, 1, Reason.BOUND)
        # Idle endpoints outside the subset do not lower the bound: (6 + 1) / 2 * 1.25 > 3.
        loads = {home.address: 3, other.address: 3}
        first = next(ranking.rank(Query(key=7), snapshot, loads))
        assert first == Candidate(home, 0, Reason.PREFIX)
