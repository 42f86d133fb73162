from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from extproc.core.strategies import Query, Reason
from extproc.core.strategies.least_request import LeastRequest
from tests.core.builders import Traffic, endpoint, endpoints


def least_request(seed: int = 0) -> LeastRequest:
    return LeastRequest(Random(seed))


def firsts(traffic: Traffic, rounds: int) -> Counter[str]:
    return Counter(traffic.rank(Query())[0].endpoint.name for _ in range(rounds))


def test_less_loaded_of_two_drawn_endpoints_is_chosen() -> None:
    a, b = endpoints(2)
    traffic = Traffic(least_request(), a, b)
    traffic.load({a.name: 5})
    # With replacement, both draws hit the busy endpoint in a quarter of all cases.
    assert firsts(traffic, 4000)[b.name] == pytest.approx(3000, rel=0.05)


def test_busiest_endpoint_is_chosen_only_if_drawn_twice() -> None:
    fleet = endpoints(4)
    traffic = Traffic(least_request(), *fleet)
    traffic.load({fleet[0].name: 9})
    assert firsts(traffic, 8000)[fleet[0].name] == pytest.approx(8000 / 16, rel=0.2)


def test_equal_endpoints_are_chosen_equally_often() -> None:
    found = firsts(Traffic(least_request(), *endpoints(4)), 4000)
    assert len(found) == 4
    assert min(found.values()) > 850


def test_loads_are_closer_than_with_random_choice() -> None:
    went = Traffic(least_request(), *endpoints(8)).send(800)
    # With random choice, the spread of 800 requests over 8 endpoints is about 30.
    assert max(went.values()) - min(went.values()) <= 6


def test_every_eligible_endpoint_is_yielded_once() -> None:
    a, b, c = endpoint("a", "sql"), endpoint("b"), endpoint("c", "sql")
    order = Traffic(least_request(), a, b, c).rank(Query("sql"))
    assert sorted(one.endpoint.name for one in order) == ["a", "c"]
    assert [one.hops for one in order] == [0, 1]
    assert {one.reason for one in order} == {Reason.LEAST_REQUEST}


def test_given_random_generator_is_used() -> None:
    def sequence(seed: int) -> list[str]:
        traffic = Traffic(least_request(seed), *endpoints(4))
        return [traffic.rank(Query())[0].endpoint.name for _ in range(50)]

    assert sequence(1) == sequence(1)
    assert sequence(1) != sequence(2)
