"""The endpoint that has a conversation's previous turn and its response."""

from __future__ import annotations

import pytest

from extproc.core.fleet import turns as module
from extproc.core.fleet.prefix_index import PrefixIndex
from extproc.core.fleet.sent_request import SentRequest
from extproc.core.fleet.turns import Turns
from tests.core.clock import Clock
from tests.core.sharing.sidecars import A, B, Sidecar
from tests.core.strategies.prefix_cache_replicas import TOKENS, not_compiled

TURN, OTHER = 7, 8


class Fleet:
    """Turns with the index of the caches that hold them."""

    def __init__(self, response_tokens: float = 500.0) -> None:
        self.clock = Clock()
        self.prefixes = PrefixIndex(self.clock)
        self.turns = Turns(self.clock, self.prefixes, response_tokens)


@pytest.fixture
def fleet() -> Fleet:
    return Fleet()


def test_is_where_the_turn_was_sent(fleet: Fleet) -> None:
    assert fleet.turns.endpoint_of(TURN) is None
    for _ in range(2):
        fleet.turns.sent(A, TURN, 0)
        assert fleet.turns.endpoint_of(TURN) == A
    assert fleet.turns.endpoint_of(OTHER) is None


def test_is_unknown_if_several_sessions_begin_with_the_turn(fleet: Fleet) -> None:
    for address in (A, B, A, A):
        fleet.turns.sent(address, TURN, 0)
    assert fleet.turns.endpoint_of(TURN) is None


@pytest.mark.parametrize("earlier", [(), (B,), (A, B)], ids=["one", "another", "several"])
def test_is_where_a_retry_went_unless_it_is_in_several(
    fleet: Fleet, earlier: tuple[str, ...]
) -> None:
    for address in (*earlier, A):
        fleet.turns.sent(address, TURN, 0)
    fleet.turns.failed(A, TURN)
    fleet.turns.sent(B, TURN, 0)
    assert fleet.turns.endpoint_of(TURN) == (None if earlier else B)


def test_is_the_endpoint_that_served_it() -> None:
    sidecar = Sidecar("a", Clock())
    lease = sidecar.sends(A, SentRequest(turn=TURN))
    sidecar.fleet.served(lease, B)
    assert sidecar.fleet.signals.turns.endpoint_of(TURN) == B


def test_may_be_another_one_after_a_restart(fleet: Fleet) -> None:
    fleet.turns.sent(A, TURN, 0)
    fleet.turns.forget(A)
    fleet.turns.sent(B, TURN, 0)
    assert fleet.turns.endpoint_of(TURN) == B


def test_is_unknown_after_the_endpoint_computed_more_than_fits_into_its_cache(
    fleet: Fleet,
) -> None:
    """The index does not show it: it has no responses and no partial blocks."""
    fleet.prefixes.resize(A, 10_000)
    fleet.turns.sent(A, TURN, 100)
    for number in range(15):
        assert fleet.turns.endpoint_of(TURN) == A
        fleet.turns.sent(A, 100 + number, 125)
        fleet.turns.sent(B, 200 + number, 1_000)
    assert fleet.turns.endpoint_of(TURN) == A
    fleet.turns.sent(A, OTHER, 125)
    assert fleet.turns.endpoint_of(TURN) is None
    assert fleet.turns.endpoint_of(OTHER) == A


def test_is_unknown_after_the_endpoint_left_or_restarted(fleet: Fleet) -> None:
    fleet.turns.sent(A, TURN, 0)
    fleet.turns.sent(B, OTHER, 0)
    fleet.turns.forget(A)
    assert fleet.turns.endpoint_of(TURN) is None
    fleet.turns.sent(A, 9, 0)  # in its next life
    found = [fleet.turns.endpoint_of(turn) for turn in (TURN, OTHER, 9)]
    assert found == [None, B, A]


def test_is_unknown_after_the_endpoint_evicted_the_turn() -> None:
    fleet = Fleet(response_tokens=0)
    fleet.prefixes.resize(A, 4 * TOKENS)
    for turn, blocks in ((TURN, (1, 2)), (OTHER, (3, 4))):
        fleet.prefixes.sent(A, blocks)
        fleet.turns.sent(A, turn, 0)
        fleet.clock.now += 1
    # The cache is full, but has evicted neither.
    assert [fleet.turns.endpoint_of(turn) for turn in (TURN, OTHER)] == [A, A]
    fleet.prefixes.sent(A, (5, 6))
    assert [fleet.turns.endpoint_of(turn) for turn in (TURN, OTHER)] == [None, A]


@not_compiled
def test_is_known_for_the_latest_turns_only(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_TURNS", 3)
    for turn in (1, 2, 3, 1, 4):  # the first one again, so the second is the oldest
        fleet.turns.sent(A, turn, 0)
    assert [fleet.turns.endpoint_of(turn) for turn in (1, 2, 3, 4)] == [A, None, A, A]
