"""The requests of all sidecars that an engine's metrics show without a first token."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.core.fleet.prefill_counts import PrefillCounts
from extproc.core.fleet.report import Load, Report

A = "10.0.0.1:8000"


def report(waiting: float, running: float, first_tokens: float, finished: float) -> Report:
    return Report(Load(waiting, 0), running, first_tokens=first_tokens, finished=finished)


@pytest.fixture
def counts() -> PrefillCounts:
    """An idle engine on which 100 requests have ended."""
    counts = PrefillCounts()
    assert counts.read(A, report(0, 0, first_tokens=100, finished=100), 0.0) == 0
    return counts


def test_are_present_requests_without_a_first_token(counts: PrefillCounts) -> None:
    assert counts.read(A, report(1, 4, first_tokens=102, finished=100), 1.0) == 3


def test_are_at_least_those_that_wait(counts: PrefillCounts) -> None:
    assert counts.read(A, report(7, 4, first_tokens=110, finished=100), 1.0) == 7


def test_do_not_include_requests_that_ended_without_a_first_token(counts: PrefillCounts) -> None:
    for seconds in range(1, 90):  # two were aborted
        counts.read(A, report(0, 1, first_tokens=101, finished=102), seconds)
    assert counts.read(A, report(0, 3, first_tokens=101, finished=102), 90.0) == 2


def test_of_a_new_engine_are_those_it_has_although_it_was_never_idle() -> None:
    counts = PrefillCounts()
    for seconds in range(60):
        assert counts.read(A, report(0, 5, first_tokens=2, finished=0), seconds) == 3


def test_are_unknown_without_counters(counts: PrefillCounts) -> None:
    assert counts.read(A, Report(Load(3, 0), 4), 1.0) is None


def test_do_not_include_those_from_before_a_restart(counts: PrefillCounts) -> None:
    counts.forget(A)
    assert counts.read(A, report(2, 1, first_tokens=0, finished=0), 1.0) == 3


@given(st.lists(st.tuples(*(st.integers(0, 50) for _ in range(4))), min_size=1))
def test_are_never_fewer_than_those_that_wait(said: list[tuple[int, int, int, int]]) -> None:
    counts = PrefillCounts()
    for seconds, one in enumerate(said):
        found = counts.read(A, report(*one), seconds)
        assert found is not None
        assert found >= one[0]
