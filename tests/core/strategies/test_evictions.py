from __future__ import annotations

from collections.abc import Callable
from math import exp

import pytest

from extproc.core.strategies.evictions import missed_tokens
from tests.core.strategies.prefix_cache_replicas import Replicas, not_compiled

pytestmark = not_compiled

Missed = Callable[[float | None, float], dict[int, float]]


@pytest.fixture
def missed(monkeypatch: pytest.MonkeyPatch) -> Missed:
    """Return a function that takes the age of the second cache's next eviction, and a share.

    The share of sessions that still continue falls by a factor of e each second. The function
    returns the tokens that will be missed for each evicted one.
    """
    replicas = Replicas(2)
    signals, (_, second) = replicas.signals, replicas.addresses

    def found(age: float | None, continued: float) -> dict[int, float]:
        monkeypatch.setattr(signals.prefixes, "age", {second: age}.get)
        monkeypatch.setattr(signals.contexts, "continued_after", lambda s: continued * exp(-s))
        return dict(missed_tokens(signals, replicas.addresses))

    return found


def test_are_those_of_a_full_cache(missed: Missed) -> None:
    assert missed(None, 0.5) == {}
    assert missed(0.0, 0.5) == {1: 1.0}


def test_evict_as_many_again(missed: Missed) -> None:
    assert missed(0.0, 0.75) == {1: pytest.approx(3.0)}


def test_are_fewer_the_longer_the_session_has_been_idle(missed: Missed) -> None:
    assert missed(1.0, 0.9)[1] < missed(0.5, 0.9)[1] < missed(0.0, 0.9)[1]


def test_are_limited_while_all_sessions_continue(missed: Missed) -> None:
    assert missed(0.0, 1.0) == {1: pytest.approx(9.0)}


def test_are_none_if_hardly_a_session_continues(missed: Missed) -> None:
    assert missed(0.0, 0.01) == {}
