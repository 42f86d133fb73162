from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.core.fleet.endpoint import Endpoint, Snapshot
from extproc.core.fleet.estimate import Estimate
from extproc.core.fleet.residency import Residency
from extproc.core.strategies import Query, Reason
from extproc.core.strategies.filters import (
    Filter,
    LeastKVCache,
    LeastQueue,
    LoraAffinity,
    LowLatency,
    PrefixAffinity,
)
from extproc.core.strategies.least_load import LeastLoad
from extproc.core.strategies.prefix_hash import PrefixHash
from tests.core.builders import endpoint, thorough

NAMES = ("a", "b", "c", "d")
FLEET = [endpoint(name, "sql") for name in NAMES]
SNAPSHOT = Snapshot.of(FLEET)


def estimates(
    queue: Sequence[float] = (0, 0, 0, 0),
    kv_usage: Sequence[float] = (0, 0, 0, 0),
    inflight: Sequence[int] = (0, 0, 0, 0),
) -> list[Estimate]:
    return [Estimate(*row) for row in zip(FLEET, inflight, queue, kv_usage, strict=True)]


def kept(one: Filter, endpoints: Sequence[Estimate], query: Query = Query()) -> str:  # noqa: B008
    """Return the names of the endpoints that the filter keeps."""
    return "".join(e.endpoint.name for e in one.keep(query, SNAPSHOT, endpoints).endpoints)


class TestLeastQueue:
    def test_keeps_the_shortest(self) -> None:
        assert kept(LeastQueue(), estimates(queue=[9, 5, 9, 5])) == "bd"

    def test_default_slack_is_the_range_over_the_number_of_endpoints(self) -> None:
        # (12 - 0) / 4 = 3.
        assert kept(LeastQueue(), estimates(queue=[3, 0, 4, 12])) == "ab"

    def test_keeps_endpoints_within_the_configured_slack(self) -> None:
        assert kept(LeastQueue(0), estimates(queue=[3, 0, 4, 12])) == "b"
        assert kept(LeastQueue(4), estimates(queue=[3, 0, 4, 12])) == "abc"


class TestLeastKVCache:
    def test_keeps_the_lowest_usage(self) -> None:
        assert kept(LeastKVCache(), estimates(kv_usage=[0.9, 0.5, 0.1, 0.9])) == "c"

    def test_keeps_endpoints_within_the_configured_slack(self) -> None:
        assert kept(LeastKVCache(0.4), estimates(kv_usage=[0.9, 0.5, 0.1, 0.9])) == "bc"


class TestLowLatency:
    def test_keeps_all_short_queues(self) -> None:
        assert kept(LowLatency(50), estimates(queue=[50, 51, 0, 400])) == "ac"

    def test_keeps_the_shortest_if_all_are_long(self) -> None:
        assert kept(LowLatency(5), estimates(queue=[10, 51, 60, 400])) == "abc"

    def test_limit_can_be_an_empty_queue(self) -> None:
        assert kept(LowLatency(0), estimates(queue=[1, 0, 0, 2])) == "bc"


class TestLoraAffinity:
    @pytest.fixture
    def residency(self) -> Residency:
        """`a` has two adapters and is full, `b` has one of two, `c` none. `d` reported nothing."""
        residency = Residency()
        residency.observed("a", frozenset({"sql", "law"}), 2)
        residency.observed("b", frozenset({"med"}), 2)
        residency.observed("c", frozenset(), 2)
        residency.used("d", "tax")
        return residency

    @pytest.mark.parametrize(
        ("adapter", "left", "reason"),
        [
            ("sql", "a", Reason.LORA_LOADED),
            ("med", "b", Reason.LORA_LOADED),
            ("tax", "d", Reason.LORA_LOADED),
            ("new", "bc", Reason.LORA_FREE_SLOT),
        ],
    )
    def test_prefers_loaded_adapters_and_then_free_slots(
        self, residency: Residency, adapter: str, left: str, reason: Reason
    ) -> None:
        one = LoraAffinity(residency)
        assert kept(one, estimates(), Query(adapter)) == left
        assert one.keep(Query(adapter), SNAPSHOT, estimates()).reason is reason

    def test_keeps_all_if_no_slot_is_free(self, residency: Residency) -> None:
        full = [e for e in estimates() if e.endpoint.name in "ad"]
        assert kept(LoraAffinity(residency), full, Query("new")) == "ad"

    def test_skips_long_queues_while_there_is_a_short_one(self, residency: Residency) -> None:
        one = LoraAffinity(residency, max_queue=5)
        assert kept(one, estimates(queue=[5, 0, 0, 0]), Query("sql")) == "a"
        assert kept(one, estimates(queue=[6, 0, 0, 0]), Query("sql")) == "bc"
        assert kept(one, estimates(queue=[6, 9, 9, 0]), Query("sql")) == "d"
        assert kept(one, estimates(queue=[6, 9, 9, 8]), Query("sql")) == "a"

    def test_keeps_all_for_the_base_model(self, residency: Residency) -> None:
        assert kept(LoraAffinity(residency), estimates()) == "abcd"


class TestPrefixAffinity:
    @pytest.fixture
    def affinity(self) -> PrefixAffinity:
        return PrefixAffinity(PrefixHash(125, LeastLoad(Random(0))))

    def test_keeps_the_home_endpoint_of_the_prefix(self, affinity: PrefixAffinity) -> None:
        home = next(SNAPSHOT.walk(7, ""))
        assert kept(affinity, estimates(), Query(key=7)) == home.name
        assert affinity.keep(Query(key=7), SNAPSHOT, estimates()).reason is Reason.PREFIX

    def test_spills_from_an_endpoint_above_the_bound(self, affinity: PrefixAffinity) -> None:
        home, neighbour, *_ = SNAPSHOT.walk(7, "")
        busy = estimates(inflight=[9 if e == home else 1 for e in FLEET])
        assert kept(affinity, busy, Query(key=7)) == neighbour.name
        assert affinity.keep(Query(key=7), SNAPSHOT, busy).reason is Reason.BOUND

    def test_chooses_only_among_the_given_endpoints(self, affinity: PrefixAffinity) -> None:
        home, *others = SNAPSHOT.walk(7, "")
        left = [e for e in estimates() if e.endpoint != home]
        assert kept(affinity, left, Query(key=7)) == others[0].name

    def test_keeps_all_without_a_prefix(self, affinity: PrefixAffinity) -> None:
        assert kept(affinity, estimates()) == "abcd"


def every_filter() -> list[Filter]:
    residency = Residency()
    residency.observed("a", frozenset({"sql"}), 1)
    return [
        LeastQueue(),
        LeastQueue(0),
        LeastKVCache(),
        LowLatency(),
        LowLatency(0),
        LoraAffinity(residency),
        PrefixAffinity(PrefixHash(100, LeastLoad(Random(0)))),
    ]


rows = st.tuples(
    st.integers(0, 99), st.floats(0, 500, allow_nan=False), st.floats(0, 3, allow_nan=False)
)


@thorough
@given(
    st.lists(rows, min_size=4, max_size=4),
    st.sets(st.integers(0, 3), min_size=1),
    st.none() | st.integers(0, 2**64 - 1),
    st.sampled_from(["", "sql"]),
)
def test_every_filter_keeps_at_least_one_endpoint_in_order(
    figures: list[tuple[int, float, float]], present: set[int], key: int | None, adapter: str
) -> None:
    fleet: list[Endpoint] = [FLEET[i] for i in sorted(present)]
    given_ones = [Estimate(e, *figures[i]) for e, i in zip(fleet, sorted(present), strict=True)]
    for one in every_filter():
        left = list(one.keep(Query(adapter, key), SNAPSHOT, given_ones).endpoints)
        assert left
        assert left == [e for e in given_ones if e in left]
