"""The requests of other sidecars that a decision does not know yet."""

from __future__ import annotations

import pytest

from extproc.core.fleet.unseen import Unseen

A, B = "10.0.0.1:8000", "10.0.0.2:8000"


def after_decisions(unseen: Unseen, missed: int, first: int = 0) -> float:
    """Return the mean after decisions each of which did not know of so many requests."""
    for decision in range(first, first + 400):
        unseen.decided(A, float(decision))
        for _ in range(missed):
            unseen.arrived(A, decision - 0.01)
    return unseen.mean


def test_are_none_without_other_sidecars() -> None:
    assert after_decisions(Unseen(), 0) == 0


@pytest.mark.parametrize("missed", [1, 3])
def test_are_those_that_arrive_after_the_decision_but_were_sent_before(missed: int) -> None:
    assert after_decisions(Unseen(), missed) == pytest.approx(missed, rel=0.01)


def test_are_forgotten_when_no_more_arrive() -> None:
    unseen = Unseen()
    after_decisions(unseen, 3)
    assert after_decisions(unseen, 0, first=400) < 0.01


def test_on_other_endpoints_do_not_count() -> None:
    unseen = Unseen()
    for decision in range(100):
        unseen.decided(A, float(decision))
        unseen.arrived(B, decision - 0.01)
    assert unseen.mean == 0


def test_that_were_sent_after_the_decision_do_not_count() -> None:
    unseen = Unseen()
    for decision in range(100):
        unseen.decided(A, float(decision))
        unseen.arrived(A, decision + 0.01)
    assert unseen.mean == 0
