from __future__ import annotations

import pytest

from extproc.adapters.tracing.trace_context import trace_context

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


def test_reads_the_parent_and_its_state() -> None:
    found = trace_context(f"00-{TRACE}-{SPAN}-01".encode(), b"vendor=1")
    assert found is not None
    assert (found.trace_id, found.span_id) == (TRACE.encode(), SPAN.encode())
    assert found.sampled
    assert found.state == b"vendor=1"


@pytest.mark.parametrize(
    ("flags", "sampled"), [("00", False), ("01", True), ("02", False), ("ff", True)]
)
def test_only_the_last_flag_means_sampled(flags: str, sampled: bool) -> None:
    found = trace_context(f"00-{TRACE}-{SPAN}-{flags}".encode(), None)
    assert found is not None
    assert found.sampled is sampled


def test_later_version_may_have_more_fields() -> None:
    assert trace_context(f"cc-{TRACE}-{SPAN}-01-more".encode(), None) is not None


@pytest.mark.parametrize(
    "value",
    [
        "",
        "hello",
        f"00-{TRACE}-{SPAN}",
        f"00-{TRACE}-{SPAN}-01-more",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE}-{SPAN}-1",
        f"00-{TRACE}-{SPAN}-01, 00-{TRACE}-{SPAN}-01",
    ],
)
def test_invalid_value_has_no_parent(value: str) -> None:
    assert trace_context(value.encode(), b"vendor=1") is None


def test_missing_header_has_no_parent() -> None:
    assert trace_context(None, None) is None
