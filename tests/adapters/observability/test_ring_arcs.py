from __future__ import annotations

from itertools import pairwise

import pytest

from extproc.adapters.observability.ring_arcs import MOST_NODES, SAMPLES, arcs, walk
from extproc.core.fleet.endpoint import Snapshot
from tests.core.builders import endpoints

KEYS = 2**64


@pytest.mark.parametrize("count", [1, 2, 8])
def test_arcs_have_the_owners_of_their_keys(count: int) -> None:
    snapshot = Snapshot.of(endpoints(count))
    drawn = arcs(snapshot)
    assert (drawn["nodes"], drawn["exact"]) == (256 * count, True)
    assert drawn["addresses"] == [one.address for one in snapshot.endpoints]
    assert drawn["ends"] == sorted(drawn["ends"])
    for (begin, end), owner in zip(pairwise(drawn["ends"]), drawn["owners"][1:], strict=True):
        middle = int((begin + end) / 2 * KEYS)
        assert walk(snapshot, middle, "", 1) == [drawn["addresses"][owner]]


def test_neighbors_with_the_same_owner_are_one_arc() -> None:
    owners = arcs(Snapshot.of(endpoints(3)))["owners"]
    assert all(one != other for one, other in pairwise(owners))
    assert len(arcs(Snapshot.of(endpoints(1)))["ends"]) == 1


def test_large_ring_is_sampled() -> None:
    snapshot = Snapshot.of(endpoints(100))
    drawn = arcs(snapshot)
    assert drawn["nodes"] > MOST_NODES
    assert (drawn["exact"], drawn["ends"][-1]) == (False, 1.0)
    assert len(drawn["ends"]) <= SAMPLES
    assert walk(snapshot, KEYS // SAMPLES // 2, "", 1) == [drawn["addresses"][drawn["owners"][0]]]


def test_ring_without_endpoints_has_no_arcs() -> None:
    drawn = arcs(Snapshot.of(()))
    assert (drawn["nodes"], drawn["ends"], drawn["owners"]) == (0, [], [])
