"""The request headers that flow control reads."""

from __future__ import annotations

import pytest

from extproc.core.flow_control.headers import tenant_hash, timeout_of


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("300", 0.3),
        (" 1500 ", 1.5),
        ("0", 0.0),
        ("999999999999", 999999999.999),
        ("9999999999999", None),
        ("9" * 5000, None),
        ("-5", None),
        ("+5", None),
        ("0.5", None),
        ("1e3", None),
        ("\u0663", None),
        ("soon", None),
        ("", None),
    ],
)
def test_a_timeout_is_a_whole_number_of_milliseconds(text: str, seconds: float | None) -> None:
    assert timeout_of({"x-request-timeout-ms": text}) == seconds


def test_a_missing_timeout_is_none() -> None:
    assert timeout_of({}) is None


def test_a_tenant_is_a_short_hash_of_its_key() -> None:
    key = "Bearer sk-" + "x" * 50_000
    assert tenant_hash(key) == tenant_hash(key)
    assert len(tenant_hash(key)) == 16
    assert tenant_hash(key) != tenant_hash(key + "x")
    assert tenant_hash("") == ""
