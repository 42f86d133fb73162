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


def test_the_less_loaded_of_two_that_were_drawn_is_taken() -> None:
    a, b = endpoints(2)
    traffic = Traffic(least_request(), a, b)
    traffic.load({a.name: 5})
    # Both draws hit the busy one in a quarter of all cases, for they are with replacement.
    assert firsts(traffic, 4000)[b.name] == pytest.approx(3000, rel=0.05)


def test_the_busiest_of_many_is_taken_only_when_drawn_twice() -> None:
    fleet = endpoints(4)
    traffic = Traffic(least_request(), *fleet)
    traffic.load({fleet[0].name: 9})
    assert firsts(traffic, 8000)[fleet[0].name] == pytest.approx(8000 / 16, rel=0.2)


def test_equals_are_taken_alike() -> None:
    found = firsts(Traffic(least_request(), *endpoints(4)), 4000)
    assert len(found) == 4
    assert min(found.values()) > 850


def test_loads_stay_closer_together_than_by_chance() -> None:
    went = Traffic(least_request(), *endpoints(8)).send(800)
    # By chance alone, the spread of 800 over 8 is some 30.
    assert max(went.values()) - min(went.values()) <= 6


def test_every_eligible_endpoint_stands_in_the_order_once() -> None:
    a, b, c = endpoint("a", "sql"), endpoint("b"), endpoint("c", "sql")
    order = Traffic(least_request(), a, b, c).rank(Query("sql"))
    assert sorted(one.endpoint.name for one in order) == ["a", "c"]
    assert [one.hops for one in order] == [0, 1]
    assert {one.reason for one in order} == {Reason.LEAST_REQUEST}


def test_the_dice_are_those_that_were_handed_in() -> None:
    def sequence(seed: int) -> list[str]:
        traffic = Traffic(least_request(seed), *endpoints(4))
        return [traffic.rank(Query())[0].endpoint.name for _ in range(50)]

    assert sequence(1) == sequence(1)
    assert sequence(1) != sequence(2)
