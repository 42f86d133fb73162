"""W3C Trace Context: the parent of a span, as `traceparent` and `tracestate` carry it."""

from __future__ import annotations

import re
from typing import NamedTuple

TRACEPARENT = "traceparent"
TRACESTATE = "tracestate"

_SAMPLED = 1

# A later version may append fields, so 00 is the only version with a fixed length.
_PATTERN = re.compile(rb"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_NO_TRACE, _NO_SPAN = b"0" * 32, b"0" * 16


class TraceContext(NamedTuple):
    """A span of another process."""

    trace_id: bytes
    """32 hexadecimal digits."""
    span_id: bytes
    """16 hexadecimal digits."""
    flags: int
    state: bytes
    """The value of `tracestate`, as it was received."""

    @property
    def sampled(self) -> bool:
        """True if the other process records its span."""
        return bool(self.flags & _SAMPLED)


def trace_context(parent: bytes | None, state: bytes | None) -> TraceContext | None:
    """Return the context in these headers; None if `traceparent` is missing or not valid."""
    if parent is None:
        return None
    match = _PATTERN.fullmatch(parent)
    if match is None:
        return None
    version, trace_id, span_id, flags, rest = match.groups()
    if version == b"ff" or (version == b"00" and rest is not None):
        return None
    if trace_id == _NO_TRACE or span_id == _NO_SPAN:
        return None
    return TraceContext(trace_id, span_id, int(flags, 16), state or b"")
