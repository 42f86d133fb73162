from __future__ import annotations

from extproc.core.fleet.residency import Residency
from extproc.core.strategies.adapter_loads import load_tokens

LOADED, FREE, TAKEN, UNKNOWN = (f"10.0.0.{n}:8000" for n in range(1, 5))
ALL = (LOADED, FREE, TAKEN, UNKNOWN)


def fleet() -> Residency:
    residency = Residency()
    residency.observed(LOADED, frozenset({"sql"}), 1)
    residency.observed(FREE, frozenset({"law"}), 2)
    residency.observed(TAKEN, frozenset({"law"}), 1)
    return residency


def test_loading_counts_least_where_the_adapter_is_and_most_where_it_replaces_another() -> None:
    loaded, free, taken, unknown = load_tokens(fleet(), "sql", ALL, ())
    assert loaded == 0 < free < taken
    assert unknown == free


def test_engine_that_reports_no_slots_may_have_a_free_one() -> None:
    residency = fleet()
    residency.used(UNKNOWN, "law")
    _, free, _, unknown = load_tokens(residency, "sql", ALL, ())
    assert unknown == free


def test_endpoint_that_may_hang_has_neither_the_adapter_nor_a_slot() -> None:
    _, _, taken, _ = load_tokens(fleet(), "sql", ALL, ())
    assert load_tokens(fleet(), "sql", ALL, stale=ALL) == [taken] * 4
