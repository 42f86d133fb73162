"""Ours and others', added up as they change."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from extproc.core.fleet.totals import Totals

A, B = "10.0.0.1:8000", "10.0.0.2:8000"


def test_nothing_is_there_where_nothing_is_known() -> None:
    assert Totals({}).sums[A] == 0


def test_ours_and_others_are_added() -> None:
    ours = {A: 2}
    totals = Totals(ours)
    totals.changed(A)
    totals.set_others(A, 3)
    totals.set_others(B, 4)
    assert dict(totals.sums) == {A: 5, B: 4}


def test_others_are_replaced_and_forgotten() -> None:
    totals = Totals({A: 2})
    totals.set_others(A, 3)
    totals.set_others(A, 1)
    assert totals.sums[A] == 3
    totals.forget_others(A)
    totals.forget_others(A)
    assert totals.sums[A] == 2


_Changes = st.lists(
    st.tuples(st.sampled_from((A, B)), st.booleans(), st.floats(0, 1e9, width=32)), max_size=50
)


@given(_Changes)
def test_no_rounding_stays_behind(changes: list[tuple[str, bool, float]]) -> None:
    ours: dict[str, float] = {}
    others: dict[str, float] = {}
    totals = Totals(ours)
    for address, is_ours, amount in changes:
        (ours if is_ours else others)[address] = amount
        if is_ours:
            totals.changed(address)
        else:
            totals.set_others(address, amount)
    for address in (A, B):
        assert totals.sums[address] == ours.get(address, 0.0) + others.get(address, 0.0)
