"""The endpoint that has a conversation's previous turn and its response."""

from __future__ import annotations

import pytest

from extproc.core.fleet import turns as module
from extproc.core.fleet.prefix_index import PrefixIndex
from extproc.core.fleet.turns import Turns
from tests.core.clock import Clock
from tests.core.strategies.prefix_cache_replicas import TOKENS, not_compiled

A, B = "10.0.0.1:8000", "10.0.0.2:8000"
TURN, OTHER = 7, 8


class Fleet:
    """Turns with the index of the caches that hold them."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.prefixes = PrefixIndex(self.clock)
        self.turns = Turns(self.clock, self.prefixes)


@pytest.fixture
def fleet() -> Fleet:
    return Fleet()


def test_is_where_the_turn_was_sent_last(fleet: Fleet) -> None:
    assert fleet.turns.endpoint_of(TURN) is None
    for address in (A, B):
        fleet.turns.sent(address, TURN)
        assert fleet.turns.endpoint_of(TURN) == address
    assert fleet.turns.endpoint_of(OTHER) is None


def test_is_unknown_after_the_endpoint_left_or_restarted(fleet: Fleet) -> None:
    fleet.turns.sent(A, TURN)
    fleet.turns.sent(B, OTHER)
    fleet.turns.forget(A)
    assert fleet.turns.endpoint_of(TURN) is None
    fleet.turns.sent(A, 9)  # in its next life
    found = [fleet.turns.endpoint_of(turn) for turn in (TURN, OTHER, 9)]
    assert found == [None, B, A]


def test_is_unknown_after_the_endpoint_evicted_the_turn(fleet: Fleet) -> None:
    fleet.prefixes.resize(A, 4 * TOKENS)
    for turn, blocks in ((TURN, (1, 2)), (OTHER, (3, 4))):
        fleet.prefixes.sent(A, blocks)
        fleet.turns.sent(A, turn)
        fleet.clock.now += 1
    # The cache is full, but has evicted neither.
    assert [fleet.turns.endpoint_of(turn) for turn in (TURN, OTHER)] == [A, A]
    fleet.prefixes.sent(A, (5, 6))
    assert [fleet.turns.endpoint_of(turn) for turn in (TURN, OTHER)] == [None, A]


@not_compiled
def test_is_known_for_the_latest_turns_only(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_TURNS", 3)
    for turn in (1, 2, 3, 1, 4):  # the first one again, so the second is the oldest
        fleet.turns.sent(A, turn)
    assert [fleet.turns.endpoint_of(turn) for turn in (1, 2, 3, 4)] == [A, None, A, A]
