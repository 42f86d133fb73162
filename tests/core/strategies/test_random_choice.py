from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from extproc.core.fleet.endpoint import Snapshot
from extproc.core.strategies import Query, Reason
from extproc.core.strategies.random_choice import RandomChoice
from tests.core.builders import Traffic, brief, endpoint, endpoints


@brief
@given(st.integers(0, 10), st.integers())
def test_every_endpoint_is_yielded_once(size: int, seed: int) -> None:
    fleet = endpoints(size)
    order = list(RandomChoice(Random(seed)).rank(Query(), Snapshot.of(fleet), {}))
    assert sorted(c.endpoint.name for c in order) == [e.name for e in fleet]
    assert [c.hops for c in order] == list(range(size))
    assert {c.reason for c in order} <= {Reason.RANDOM}


def test_each_endpoint_is_equally_likely_with_any_load() -> None:
    traffic = Traffic(RandomChoice(Random(0)), *endpoints(4))
    traffic.load({"default/pod-00": 100})
    went = traffic.send(4000)
    assert len(went) == 4
    assert min(went.values()) > 850


def test_only_endpoints_with_the_adapter_are_candidates() -> None:
    traffic = Traffic(RandomChoice(Random(0)), endpoint("a", "sql"), endpoint("b"))
    assert traffic.send(20, Query("sql")) == {"a": 20}
    assert traffic.rank(Query("law")) == []


def test_given_random_generator_is_used() -> None:
    def firsts(seed: int) -> list[str]:
        traffic = Traffic(RandomChoice(Random(seed)), *endpoints(4))
        return [traffic.rank(Query())[0].endpoint.name for _ in range(50)]

    assert firsts(1) == firsts(1)
    assert firsts(1) != firsts(2)
