"""Totals of known requests and others, by endpoint."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from extproc.core.fleet.totals import Total, Totals

A, B = "10.0.0.1:8000", "10.0.0.2:8000"


def test_unknown_endpoint_is_idle() -> None:
    assert Totals().of(A).is_idle


def test_endpoint_has_requests_if_it_probably_has_some_of_others() -> None:
    total = Total()
    for mean, has_requests in ((0.0, False), (0.49, False), (0.5, True), (1.0, True)):
        total.other_requests = mean
        total.add_up()
        assert total.has_requests == has_requests, mean


def test_endpoint_keeps_its_object() -> None:
    totals = Totals()
    assert totals.of(A) is totals.of(A) is not totals.of(B)


_Changes = st.lists(st.tuples(st.integers(0, 3), st.floats(0, 1e9, width=32)), max_size=50)


@given(_Changes)
def test_leaves_no_rounding_error(changes: list[tuple[int, float]]) -> None:
    total = Total()
    parts = ["known_requests", "other_requests", "known_backlog", "other_backlog"]
    for number, amount in changes:
        setattr(total, parts[number], amount)
        total.add_up()
    assert total.requests == total.known_requests + total.other_requests
    assert total.backlog == total.known_backlog + total.other_backlog


class TestKeepOnly:
    def test_drops_other_endpoints(self) -> None:
        totals = Totals()
        before = totals.of(A)
        totals.keep_only([B])
        assert totals.of(A) is not before

    def test_keeps_an_endpoint_with_load(self) -> None:
        totals = Totals()
        before = totals.of(A)
        before.context = 100.0
        totals.keep_only([B])
        assert totals.of(A) is before

    def test_changes_the_version_if_an_object_is_dropped(self) -> None:
        totals = Totals()
        versions = [totals.version]
        for known in ([A], [A], [B], [B]):
            totals.of(A if known == [A] else B)
            totals.keep_only(known)
            versions.append(totals.version)
        assert versions == [0, 0, 0, 1, 1]
