from __future__ import annotations

from collections import Counter
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from extproc.core.fleet.endpoint import Snapshot
from extproc.core.strategies import Query, Reason
from extproc.core.strategies.least_load import LeastLoad
from tests.core.builders import Traffic, endpoint, endpoints, thorough

A1 = endpoint("pod-a-1", "sql")
A2 = endpoint("pod-a-2")


def least_load(seed: int = 0) -> LeastLoad:
    return LeastLoad(Random(seed))


def test_golden_sequence_of_kubeai() -> None:
    traffic = Traffic(least_load(), A1, A2)
    assert traffic.send(2) == {"pod-a-1": 1, "pod-a-2": 1}
    assert traffic.send(100) == {"pod-a-1": 50, "pod-a-2": 50}
    assert traffic.send(50, Query("sql")) == {"pod-a-1": 50}
    assert traffic.send(52) == {"pod-a-1": 1, "pod-a-2": 51}
    assert traffic.send(2) == {"pod-a-1": 1, "pod-a-2": 1}
    traffic.finish("pod-a-2", 10)
    assert traffic.send(12) == {"pod-a-1": 1, "pod-a-2": 11}


@thorough
@given(st.lists(st.integers(0, 5), max_size=10), st.integers())
def test_every_eligible_endpoint_is_yielded_once_by_load(counts: list[int], seed: int) -> None:
    fleet = endpoints(len(counts))
    loads = {e.address: n for e, n in zip(fleet, counts, strict=True) if n}
    order = list(least_load(seed).rank(Query(), Snapshot.of(fleet), loads))
    assert sorted(c.endpoint.name for c in order) == [e.name for e in fleet]
    assert [loads.get(c.endpoint.address, 0) for c in order] == sorted(counts)
    assert [c.hops for c in order] == list(range(len(fleet)))
    assert {c.reason for c in order} <= {Reason.LEAST_LOAD}


def test_only_endpoints_with_the_adapter_are_candidates() -> None:
    traffic = Traffic(least_load(), A1, A2)
    traffic.load({"pod-a-1": 10})
    assert [c.endpoint for c in traffic.rank(Query("sql"))] == [A1]
    assert traffic.rank(Query("law")) == []


def test_ties_are_broken_evenly() -> None:
    traffic = Traffic(least_load(), *endpoints(4))
    firsts = Counter(traffic.rank(Query())[0].endpoint.name for _ in range(4000))
    assert len(firsts) == 4
    assert min(firsts.values()) > 850


def test_ties_are_broken_by_the_given_random_generator() -> None:
    def firsts(seed: int) -> list[str]:
        traffic = Traffic(least_load(seed), *endpoints(4))
        return [traffic.rank(Query())[0].endpoint.name for _ in range(50)]

    assert firsts(1) == firsts(1)
    assert firsts(1) != firsts(2)
