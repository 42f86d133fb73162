"""Sums of own and others' load."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from extproc.core.fleet.totals import Totals

A, B = "10.0.0.1:8000", "10.0.0.2:8000"


def test_unknown_address_has_zero() -> None:
    assert Totals({}).sums[A] == 0


def test_adds_own_and_others() -> None:
    ours = {A: 2}
    totals = Totals(ours)
    totals.changed(A)
    totals.set_others(A, 3)
    totals.set_others(B, 4)
    assert dict(totals.sums) == {A: 5, B: 4}


def test_replaces_and_forgets_others() -> None:
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
def test_leaves_no_rounding_error(changes: list[tuple[str, bool, float]]) -> None:
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
