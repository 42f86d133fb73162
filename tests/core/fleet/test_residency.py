from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from extproc.core.fleet.residency import Residency
from tests.core.builders import thorough

A = "10.0.0.1:8000"
B = "10.0.0.2:8000"
NONE: frozenset[str] = frozenset()


def test_nothing_is_loaded_where_nothing_was_used() -> None:
    residency = Residency()
    assert list(residency.loaded(A)) == []
    assert not residency.has(A, "sql")
    assert residency.has_room(A)


def test_an_adapter_is_loaded_from_the_moment_it_is_used() -> None:
    residency = Residency()
    residency.used(A, "sql")
    assert residency.has(A, "sql")
    assert not residency.has(B, "sql")


def test_an_endpoint_that_has_not_told_its_slots_has_one_as_vllm_has_by_default() -> None:
    residency = Residency()
    residency.used(A, "sql")
    assert not residency.has_room(A)
    residency.used(A, "law")
    assert list(residency.loaded(A)) == ["law"]


def test_what_others_use_is_seen_in_the_metrics() -> None:
    residency = Residency()
    residency.observed(A, frozenset({"sql"}), 2)
    assert residency.has(A, "sql")
    assert residency.has_room(A)


def test_an_adapter_stays_loaded_when_its_requests_are_over() -> None:
    residency = Residency()
    residency.observed(A, frozenset({"sql"}), 2)
    residency.observed(A, NONE, 2)
    assert residency.has(A, "sql")


def test_the_least_recently_used_makes_room() -> None:
    residency = Residency()
    residency.observed(A, NONE, 2)
    for adapter in ("sql", "law", "sql", "med"):
        residency.used(A, adapter)
    assert list(residency.loaded(A)) == ["sql", "med"]


def test_fewer_slots_than_before_keep_the_most_recent() -> None:
    residency = Residency()
    residency.observed(A, frozenset("abc"), 3)
    residency.observed(A, NONE, 1)
    assert list(residency.loaded(A)) == ["c"]


def test_what_is_in_use_is_there_and_what_waits_for_a_slot_will_be() -> None:
    residency = Residency()
    residency.used(A, "idle")
    residency.observed(A, frozenset("abcd"), 2)
    assert list(residency.loaded(A)) == ["a", "b", "c", "d"]
    assert not residency.has_room(A)
    residency.observed(A, frozenset("cd"), 2)
    assert list(residency.loaded(A)) == ["c", "d"]


def test_without_lora_figures_the_slots_stay_as_told() -> None:
    residency = Residency()
    residency.observed(A, NONE, 3)
    residency.observed(A, frozenset("ab"), None)
    assert list(residency.loaded(A)) == ["a", "b"]


def test_an_endpoint_that_comes_back_has_nothing() -> None:
    residency = Residency()
    residency.used(A, "sql")
    residency.forget(A)
    residency.forget(A)
    assert not residency.has(A, "sql")


@thorough
@given(st.integers(1, 4), st.lists(st.sampled_from("abcdef"), max_size=30))
def test_the_last_used_are_loaded_and_no_more_than_fit(slots: int, uses: Sequence[str]) -> None:
    residency = Residency()
    residency.observed(A, NONE, slots)
    for adapter in uses:
        residency.used(A, adapter)
    expected = list(dict.fromkeys(reversed(uses)))[:slots]
    assert list(residency.loaded(A)) == expected[::-1]
    assert residency.has_room(A) == (len(expected) < slots)


def test_what_was_just_sent_stays_though_all_slots_are_in_use() -> None:
    residency = Residency()
    residency.observed(A, frozenset("ab"), 2)
    residency.used(A, "c")
    assert list(residency.loaded(A)) == ["a", "b", "c"]
    residency.used(A, "d")
    assert list(residency.loaded(A)) == ["a", "b", "d"]
