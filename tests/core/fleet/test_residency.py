from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from extproc.core.fleet.residency import Residency
from tests.core.builders import thorough

A = "10.0.0.1:8000"
B = "10.0.0.2:8000"
NONE: frozenset[str] = frozenset()


def test_no_adapter_is_loaded_before_its_use() -> None:
    residency = Residency()
    assert list(residency.loaded(A)) == []
    assert not residency.has(A, "sql")
    assert residency.has_room(A)


def test_adapter_is_loaded_once_used() -> None:
    residency = Residency()
    residency.used(A, "sql")
    assert residency.has(A, "sql")
    assert not residency.has(B, "sql")


def test_default_is_one_slot() -> None:
    residency = Residency()
    residency.used(A, "sql")
    assert not residency.has_room(A)
    residency.used(A, "law")
    assert list(residency.loaded(A)) == ["law"]


def test_loading_replaces_an_adapter_if_all_reported_slots_are_taken() -> None:
    residency = Residency()
    residency.used(A, "sql")
    assert not residency.replaces(A)  # it has not reported its slots
    residency.observed(A, NONE, 2)
    assert not residency.replaces(A)
    residency.used(A, "law")
    assert residency.replaces(A)
    assert not residency.replaces(B)


def test_scrapes_show_adapters_of_other_sidecars() -> None:
    residency = Residency()
    residency.observed(A, frozenset({"sql"}), 2)
    assert residency.has(A, "sql")
    assert residency.has_room(A)


def test_adapter_stays_loaded_after_its_requests() -> None:
    residency = Residency()
    residency.observed(A, frozenset({"sql"}), 2)
    residency.observed(A, NONE, 2)
    assert residency.has(A, "sql")


def test_least_recently_used_adapter_is_evicted() -> None:
    residency = Residency()
    residency.observed(A, NONE, 2)
    for adapter in ("sql", "law", "sql", "med"):
        residency.used(A, adapter)
    assert list(residency.loaded(A)) == ["sql", "med"]


def test_fewer_slots_keep_the_most_recent_adapters() -> None:
    residency = Residency()
    residency.observed(A, frozenset("abc"), 3)
    residency.observed(A, NONE, 1)
    assert list(residency.loaded(A)) == ["c"]


def test_running_and_waiting_adapters_count_as_loaded() -> None:
    residency = Residency()
    residency.used(A, "idle")
    residency.observed(A, frozenset("abcd"), 2)
    assert list(residency.loaded(A)) == ["a", "b", "c", "d"]
    assert not residency.has_room(A)
    residency.observed(A, frozenset("cd"), 2)
    assert list(residency.loaded(A)) == ["c", "d"]


def test_slots_stay_if_a_scrape_has_none() -> None:
    residency = Residency()
    residency.observed(A, NONE, 3)
    residency.observed(A, frozenset("ab"), None)
    assert list(residency.loaded(A)) == ["a", "b"]


def test_returning_endpoint_has_no_adapters() -> None:
    residency = Residency()
    residency.used(A, "sql")
    residency.forget(A)
    residency.forget(A)
    assert not residency.has(A, "sql")


@thorough
@given(st.integers(1, 4), st.lists(st.sampled_from("abcdef"), max_size=30))
def test_most_recent_adapters_up_to_the_slots_are_loaded(slots: int, uses: Sequence[str]) -> None:
    residency = Residency()
    residency.observed(A, NONE, slots)
    for adapter in uses:
        residency.used(A, adapter)
    expected = list(dict.fromkeys(reversed(uses)))[:slots]
    assert list(residency.loaded(A)) == expected[::-1]
    assert residency.has_room(A) == (len(expected) < slots)


def test_adapter_of_the_last_request_stays_with_all_slots_in_use() -> None:
    residency = Residency()
    residency.observed(A, frozenset("ab"), 2)
    residency.used(A, "c")
    assert list(residency.loaded(A)) == ["a", "b", "c"]
    residency.used(A, "d")
    assert list(residency.loaded(A)) == ["a", "b", "d"]
