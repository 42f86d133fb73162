"""The interface through which the edge reports decisions to a tracer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from extproc.core.conversation.verdict import Verdict

Metadata = Mapping[bytes, bytes]
"""Metadata of a gRPC call: values by lower-case name."""


class DecisionSpan(Protocol):
    """The time from a stream's beginning to its decision."""

    def read(self, headers: Mapping[str, bytes]) -> None:
        """Read the trace context of the HTTP request, unless the stream had one."""

    def decided(self, verdict: Verdict, request_id: str) -> None:
        """End the span. Must be called at most once, and never blocks."""


class Tracing(Protocol):
    """The tracer of all streams."""

    def begin(self, metadata: Metadata) -> DecisionSpan:
        """Return the span of a stream that begins now. `metadata` is that of Envoy's call."""
