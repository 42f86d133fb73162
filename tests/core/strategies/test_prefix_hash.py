from __future__ import annotations

from collections import Counter
from fractions import Fraction
from random import Random

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from extproc.core.fleet.endpoint import Endpoint, Snapshot
from extproc.core.strategies import Candidate, Query, Reason
from extproc.core.strategies.least_load import LeastLoad
from extproc.core.strategies.prefix_hash import PrefixHash
from tests.core.builders import Traffic, endpoint, endpoints, thorough

A1 = endpoint("pod-a-1")
A2 = endpoint("pod-a-2")
# Prefixes exactly at the only virtual node of each endpoint, with replication 1.
AT_A1 = Query(key=xxhash.xxh64_intdigest(b"pod-a-10"))
AT_A2 = Query(key=xxhash.xxh64_intdigest(b"pod-a-20"))

loads_of_endpoints = st.lists(st.integers(0, 1000), min_size=1, max_size=12)
keys = st.integers(0, 2**64 - 1)


def prefix_hash(factor: int = 125, *, count_arrival: bool = False) -> PrefixHash:
    return PrefixHash(factor, LeastLoad(Random(0)), count_arrival=count_arrival)


def loaded(counts: list[int]) -> tuple[list[Endpoint], dict[str, int]]:
    """Return the loads of endpoints. As in the ledger, idle ones are absent."""
    fleet = endpoints(len(counts))
    return fleet, {e.address: n for e, n in zip(fleet, counts, strict=True) if n}


class TestGoldenSequenceOfKubeAI:
    """KubeAI's test: replication 1, mean load factor 150, and the bound of its benchmarks."""

    def traffic(self) -> Traffic:
        traffic = Traffic(prefix_hash(150, count_arrival=True), A1, A2, replication=1)
        traffic.load({"pod-a-1": 10, "pod-a-2": 10})
        return traffic

    def test_prefix_stays_on_its_endpoint_until_the_bound_and_then_spills(self) -> None:
        traffic = self.traffic()
        assert traffic.send(1, AT_A1) == {"pod-a-1": 1}
        # 30 + 1 is above (40 + 1) / 2 * 1.5. With one more request on the other it is not.
        assert traffic.send(20, AT_A1) == {"pod-a-1": 19, "pod-a-2": 1}
        assert traffic.send(4, AT_A1) == {"pod-a-1": 3, "pod-a-2": 1}
        assert traffic.send(20, AT_A2) == {"pod-a-2": 20}

    def test_single_endpoint_takes_all_requests(self) -> None:
        traffic = Traffic(prefix_hash(150, count_arrival=True), A1, replication=1)
        assert traffic.send(100_000, AT_A1) == {"pod-a-1": 100_000}

    def test_random_prefixes_spread_evenly_and_release_their_load(self) -> None:
        pods = endpoint("default/pod-a-1"), endpoint("default/pod-a-2")
        traffic = Traffic(prefix_hash(100_000), *pods, replication=256)
        random = Random(0)
        went: Counter[str] = Counter()
        for _ in range(100_000):
            went.update(traffic.send(1, Query(key=random.getrandbits(64))))
        assert went.total() == 100_000
        assert abs(went[pods[0].name] - went[pods[1].name]) < 0.04 * 100_000
        traffic.finish_all()
        assert dict(traffic.ledger.loads) == {}


class TestBound:
    def test_is_none_without_requests_in_flight(self) -> None:
        fleet = endpoints(3)
        assert prefix_hash(100).bound(fleet, {}) is None
        traffic = Traffic(prefix_hash(100), *fleet)
        assert [c.reason for c in traffic.rank(AT_A1)] == ["prefix", "bound", "bound"]

    def test_endpoint_at_the_bound_takes_one_more_request(self) -> None:
        # (9 + 1) / 2 * 1 = 5
        traffic = Traffic(prefix_hash(100), A1, A2, replication=1)
        traffic.load({"pod-a-1": 5, "pod-a-2": 4})
        assert traffic.rank(AT_A1)[0] == Candidate(A1, 0, Reason.PREFIX)

    def test_endpoint_above_the_bound_spills(self) -> None:
        # (10 + 1) / 2 * 1 = 5.5
        traffic = Traffic(prefix_hash(100), A1, A2, replication=1)
        traffic.load({"pod-a-1": 6, "pod-a-2": 4})
        assert traffic.rank(AT_A1) == [
            Candidate(A2, 1, Reason.BOUND),
            Candidate(A1, 0, Reason.OVER_BOUND),
        ]

    def test_counting_arrivals_fills_an_endpoint_one_request_earlier(self) -> None:
        traffic = Traffic(prefix_hash(100, count_arrival=True), A1, A2, replication=1)
        traffic.load({"pod-a-1": 5, "pod-a-2": 4})
        assert traffic.rank(AT_A1)[0] == Candidate(A2, 1, Reason.BOUND)

    @thorough
    @given(loads_of_endpoints, st.integers(100, 1000), keys, st.booleans())
    def test_is_the_mean_including_this_request_times_the_factor(
        self, counts: list[int], factor: int, key: int, count_arrival: bool
    ) -> None:
        fleet, loads = loaded(counts)
        strategy = prefix_hash(factor, count_arrival=count_arrival)
        right = Fraction(sum(counts) + 1, len(counts)) * factor / 100
        for candidate in strategy.rank(Query(key=key), Snapshot.of(fleet), loads):
            load = loads.get(candidate.endpoint.address, 0) + (1 if count_arrival else 0)
            within = sum(counts) == 0 or load <= right
            assert (candidate.reason is not Reason.OVER_BOUND) == within


@st.composite
def fleets(draw: st.DrawFn) -> tuple[list[Endpoint], dict[str, int]]:
    """Draw endpoints with any loads and any adapters."""
    fleet, loads = loaded(draw(loads_of_endpoints))
    adapters = st.frozensets(st.sampled_from(["sql", "law"]))
    return [Endpoint(e.address, e.name, draw(adapters)) for e in fleet], loads


adapters = st.sampled_from(["", "sql", "law", "unheard-of"])


class TestOrder:
    @thorough
    @given(fleets(), adapters, st.integers(100, 100_000), keys)
    def test_first_candidate_is_always_within_the_bound(
        self,
        fleet_and_loads: tuple[list[Endpoint], dict[str, int]],
        adapter: str,
        factor: int,
        key: int,
    ) -> None:
        fleet, loads = fleet_and_loads
        order = prefix_hash(factor).rank(Query(adapter, key), Snapshot.of(fleet), loads)
        first = next(order, None)
        assert first is None or first.reason in (Reason.PREFIX, Reason.BOUND)

    @thorough
    @given(fleets(), adapters, st.one_of(st.none(), keys), st.booleans())
    def test_contains_every_eligible_endpoint_once(
        self,
        fleet_and_loads: tuple[list[Endpoint], dict[str, int]],
        adapter: str,
        key: int | None,
        count_arrival: bool,
    ) -> None:
        fleet, loads = fleet_and_loads
        strategy = prefix_hash(count_arrival=count_arrival)
        order = list(strategy.rank(Query(adapter, key), Snapshot.of(fleet), loads))
        eligible = [e.name for e in fleet if not adapter or adapter in e.adapters]
        assert sorted(c.endpoint.name for c in order) == sorted(eligible)
        assert sorted(c.hops for c in order) == list(range(len(eligible)))

    @thorough
    @given(fleets(), adapters, keys)
    def test_endpoints_over_the_bound_come_last_in_ring_order(
        self,
        fleet_and_loads: tuple[list[Endpoint], dict[str, int]],
        adapter: str,
        key: int,
    ) -> None:
        fleet, loads = fleet_and_loads
        snapshot = Snapshot.of(fleet)
        order = list(prefix_hash().rank(Query(adapter, key), snapshot, loads))
        over = [c.reason is Reason.OVER_BOUND for c in order]
        assert over == sorted(over)
        for part in (True, False):
            hops = [c.hops for c, is_over in zip(order, over, strict=True) if is_over is part]
            assert hops == sorted(hops)
        on_ring = [e for e in snapshot.ring.walk(key) if not adapter or adapter in e.adapters]
        assert [c.endpoint for c in sorted(order, key=lambda c: c.hops)] == on_ring
        assert all((c.reason is Reason.PREFIX) <= (c.hops == 0) for c in order)


class TestAdapters:
    with_adapter = (endpoint("pod-a-1", "sql"), endpoint("pod-a-2", "sql"))
    without = endpoint("pod-a-3")

    def test_only_endpoints_with_the_adapter_are_candidates(self) -> None:
        traffic = Traffic(prefix_hash(), *self.with_adapter, self.without)
        for key in range(0, 2**64, 2**58):
            order = traffic.rank(Query("sql", key))
            assert {c.endpoint.name for c in order} == {"pod-a-1", "pod-a-2"}

    def test_load_of_other_endpoints_does_not_raise_the_bound(self) -> None:
        traffic = Traffic(prefix_hash(), *self.with_adapter, self.without, replication=1)
        # For two endpoints: (10 + 1) / 2 * 1.25 < 7. For all three it would be more than 400.
        traffic.load({"pod-a-1": 10, "pod-a-3": 1000})
        assert traffic.rank(Query("sql", AT_A1.key))[0].endpoint.name == "pod-a-2"

    def test_other_idle_endpoints_do_not_lower_the_bound(self) -> None:
        idle = [endpoint(f"pod-b-{i}") for i in range(20)]
        traffic = Traffic(prefix_hash(), *self.with_adapter, *idle, replication=1)
        # For two endpoints: (2 + 1) / 2 * 1.25 < 2. For all it would be less than 1.
        traffic.load({"pod-a-1": 1, "pod-a-2": 1})
        assert traffic.rank(Query("sql", AT_A1.key))[0] == Candidate(
            self.with_adapter[0], 0, Reason.PREFIX
        )

    def test_hops_count_eligible_endpoints_only(self) -> None:
        idle = [endpoint(f"pod-b-{i}") for i in range(20)]
        traffic = Traffic(prefix_hash(), *self.with_adapter, *idle)
        assert [c.hops for c in traffic.rank(Query("sql", 12345))] == [0, 1]

    def test_adapter_without_endpoints_has_no_candidates(self) -> None:
        assert Traffic(prefix_hash(), *self.with_adapter).rank(Query("law", 1)) == []


class TestRequestWithoutPrefix:
    def test_goes_to_the_least_loaded_endpoint(self) -> None:
        traffic = Traffic(prefix_hash(), A1, A2)
        traffic.load({"pod-a-1": 2, "pod-a-2": 1})
        assert traffic.rank(Query()) == [
            Candidate(A2, 0, Reason.NO_PREFIX),
            Candidate(A1, 1, Reason.NO_PREFIX),
        ]

    def test_does_not_overload_one_endpoint(self) -> None:
        traffic = Traffic(prefix_hash(), A1, A2)
        assert traffic.send(100) == {"pod-a-1": 50, "pod-a-2": 50}

    def test_is_not_confused_with_key_zero(self) -> None:
        assert Traffic(prefix_hash(), A1).rank(Query(key=0))[0].reason is Reason.PREFIX


@pytest.mark.parametrize("key", [0, 1, 2**63, 2**64 - 1])
def test_prefix_stays_on_its_endpoint_within_the_bound(key: int) -> None:
    traffic = Traffic(prefix_hash(125), *endpoints(8))
    home = traffic.rank(Query(key=key))[0].endpoint
    # 13 <= (80 + 3 + 1) / 8 * 1.25 < 14
    traffic.load({e.name: 10 for e in traffic.snapshot.endpoints})
    assert traffic.send(4, Query(key=key)) == {home.name: 4}
    assert traffic.rank(Query(key=key))[0].reason is Reason.BOUND


def test_full_endpoint_always_spills_to_the_same_neighbor() -> None:
    traffic = Traffic(prefix_hash(125), *endpoints(8))
    home, neighbour, *_ = (c.endpoint.name for c in traffic.rank(Query(key=42)))
    traffic.load({home: 10})
    assert {traffic.rank(Query(key=42))[0].endpoint.name for _ in range(20)} == {neighbour}


def test_empty_snapshot_has_no_candidates() -> None:
    assert Traffic(prefix_hash()).rank(Query(key=1)) == []
    assert Traffic(prefix_hash()).rank(Query()) == []
