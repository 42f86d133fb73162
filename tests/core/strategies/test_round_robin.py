from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from extproc.core.fleet.endpoint import Snapshot
from extproc.core.strategies import Candidate, Query, Reason
from extproc.core.strategies.round_robin import RoundRobin
from tests.core.builders import Traffic, brief, endpoint, endpoints

A, B, C = endpoint("a", "sql"), endpoint("b"), endpoint("c", "sql")


def test_endpoints_take_turns() -> None:
    traffic = Traffic(RoundRobin(), C, A, B)
    firsts = [traffic.rank(Query())[0].endpoint.name for _ in range(7)]
    assert firsts == ["a", "b", "c", "a", "b", "c", "a"]


def test_other_endpoints_follow_in_turn() -> None:
    traffic = Traffic(RoundRobin(), A, B, C)
    traffic.send(1)
    assert traffic.rank(Query()) == [
        Candidate(B, 0, Reason.ROUND_ROBIN),
        Candidate(C, 1, Reason.ROUND_ROBIN),
        Candidate(A, 2, Reason.ROUND_ROBIN),
    ]


def test_load_is_ignored() -> None:
    traffic = Traffic(RoundRobin(), A, B, C)
    traffic.load({"a": 100})
    assert traffic.send(9) == {"a": 3, "b": 3, "c": 3}


def test_only_endpoints_with_the_adapter_are_candidates() -> None:
    traffic = Traffic(RoundRobin(), A, B, C)
    assert traffic.send(10, Query("sql")) == {"a": 5, "c": 5}
    assert traffic.rank(Query("law")) == []


@brief
@given(st.lists(st.integers(0, 5), min_size=1))
def test_every_endpoint_is_yielded_once_after_any_change(
    sizes: list[int],
) -> None:
    strategy = RoundRobin()
    for size in sizes:
        fleet = endpoints(size)
        order = strategy.rank(Query(), Snapshot.of(fleet), {})
        assert sorted(c.endpoint.name for c in order) == [e.name for e in fleet]
