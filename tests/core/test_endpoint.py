from __future__ import annotations

from itertools import permutations

from extproc.core.endpoint import Snapshot
from tests.core.builders import endpoint

A, B, C = endpoint("a", "sql"), endpoint("b", "sql", "law"), endpoint("c")


def test_a_snapshot_is_the_same_for_every_order_of_arrival() -> None:
    for arrival in permutations([A, B, C]):
        snapshot = Snapshot.of(arrival)
        assert snapshot.endpoints == (A, B, C)
        assert list(snapshot.ring.walk(0)) == list(Snapshot.of([A, B, C]).ring.walk(0))


def test_without_an_adapter_all_are_eligible() -> None:
    assert Snapshot.of([A, B, C]).eligible("") == (A, B, C)


def test_with_an_adapter_those_that_have_it_are_eligible() -> None:
    snapshot = Snapshot.of([A, B, C])
    assert snapshot.eligible("sql") == (A, B)
    assert snapshot.eligible("law") == (B,)
    assert snapshot.eligible("unheard-of") == ()


def test_each_endpoint_has_the_replications_number_of_places() -> None:
    assert len(Snapshot.of([A, B, C], replication=10).ring) == 30
