from __future__ import annotations

import pytest

from extproc.core.fleet.subset import subset_of


@pytest.mark.parametrize(
    ("entry", "address"),
    [
        ("10.0.0.1:8000", "10.0.0.1:8000"),
        (" 10.0.0.1:8000 ", "10.0.0.1:8000"),
        ("10.0.0.1:08000", "10.0.0.1:8000"),
        ("10.0.0.1", "10.0.0.1:8000"),
        ("10.0.0.1", "10.0.0.1:9"),
        ("[2001:db8::1]:8000", "[2001:db8::1]:8000"),
        ("[2001:0DB8:0::1]:8000", "[2001:db8::1]:8000"),
        ("[2001:db8::1]", "[2001:db8::1]:8000"),
        ("2001:db8::1", "[2001:db8::1]:8000"),
        ("10.0.0.2:8000,10.0.0.1:8000", "10.0.0.1:8000"),
        ("10.0.0.2:8000 , 10.0.0.1", "10.0.0.1:8000"),
        (",,[::1]:8000,", "[::1]:8000"),
    ],
)
def test_entry_without_a_port_allows_all_ports(entry: str, address: str) -> None:
    assert subset_of(("10.9.9.9:1", entry)).allows(address)


@pytest.mark.parametrize(
    ("entry", "address"),
    [
        ("10.0.0.1:8000", "10.0.0.1:8001"),
        ("10.0.0.1:8000", "10.0.0.11:8000"),
        ("10.0.0.1", "10.0.0.10:8000"),
        ("[2001:db8::1]:8000", "[2001:db8::1]:8001"),
        ("[10.0.0.1]:8000", "10.0.0.1:8000"),
        ("pod-1:8000", "10.0.0.1:8000"),
        ("10.0.0.1:", "10.0.0.1:8000"),
        ("10.0.0.1:http", "10.0.0.1:8000"),
        ("10.0.0.1:" + "9" * 5000, "10.0.0.1:8000"),
        (":8000", "10.0.0.1:8000"),
        ("", "10.0.0.1:8000"),
    ],
)
def test_malformed_entry_allows_nothing(entry: str, address: str) -> None:
    assert not subset_of((entry,)).allows(address)


def test_empty_subset_allows_nothing() -> None:
    assert not subset_of(()).allows("10.0.0.1:8000")
