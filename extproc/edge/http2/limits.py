"""Limits on one peer, at once and over time."""

from __future__ import annotations

from dataclasses import dataclass

from extproc.edge.http2.errors import ENHANCE_YOUR_CALM, ConnectionFault
from extproc.edge.http2.frames import (
    DEFAULT_WINDOW,
    LARGEST_MAX_FRAME,
    LARGEST_WINDOW,
    SMALLEST_MAX_FRAME,
)


@dataclass(frozen=True)
class Limits:
    """Limits of one connection. Raises ValueError for values that the protocol forbids."""

    concurrent_streams: int = 20_000
    """Open streams. Further ones are refused, and clients retry them on another connection.
    Envoy opens a connection for each of its worker threads."""
    stream_window: int = 262_144
    """Unconsumed bytes of one stream. At least the 65,535 bytes that a peer may send before it
    has received our SETTINGS."""
    wide_window: int = 1_048_576
    """Unconsumed bytes of a stream for which `widen` was called."""
    connection_window: int = 16_777_216
    """Unconsumed bytes of all streams together: the memory that a peer can take."""
    frame_size: int = SMALLEST_MAX_FRAME
    """Bytes of a frame's payload."""
    header_block: int = 65_536
    """Bytes of an encoded header block, over all its frames."""
    header_list: int = 65_536
    """Bytes of a decoded header block. Each field counts 32 bytes more than it has."""
    header_fields: int = 100
    """Fields of a header block. Envoy sends about fifteen."""
    continuations: int = 16
    """CONTINUATION frames of a header block, empty ones included."""
    remembered: int = 4_096
    """Streams that we ended or reset first, and on which frames may still arrive."""
    budget: int = 20_000
    """Tokens of a `Budget`: useless frames that a peer may send at once. If Envoy cancels 10,000
    requests before we can answer them, that takes half of it."""
    budget_per_second: float = 1_000.0
    """Tokens that a `Budget` regains each second."""

    def __post_init__(self) -> None:
        windows = self.stream_window, self.connection_window
        if not all(DEFAULT_WINDOW <= window <= LARGEST_WINDOW for window in windows):
            raise ValueError("windows must be from 65,535 bytes to 2 GiB")
        if not SMALLEST_MAX_FRAME <= self.frame_size <= LARGEST_MAX_FRAME:
            raise ValueError("frames must be from 16,384 bytes to 16 MiB")


LIMITS = Limits()

FIELDS_PER_TOKEN = 16
"""Decoded header fields that cost a peer one token of its `Budget`. A cached block costs none."""


class Budget:
    """A token bucket for frames that cost the peer little and us something.

    Each of these takes a token:

    - a PING, SETTINGS, PRIORITY, GOAWAY or unknown frame
    - a DATA frame without content
    - a frame on a closed stream
    - a stream that is malformed, refused, or reset before we have answered
    - a WINDOW_UPDATE that opens next to nothing
    - each `FIELDS_PER_TOKEN` header fields that must be decoded

    Each DATA frame that we send earns two tokens. The peer may acknowledge it with two
    WINDOW_UPDATE frames, one for the stream and one for the connection.
    """

    __slots__ = ("_capacity", "_per_second", "_since", "left", "now")

    def __init__(self, capacity: int, per_second: float) -> None:
        self._capacity = capacity
        self._per_second = per_second
        self._since: float | None = None
        self.left = float(capacity)
        self.now = 0.0
        """The time of what is being received: monotonic, in seconds. The caller sets it."""

    def spend(self, tokens: int = 1) -> None:
        """Take tokens. Raises ConnectionFault if there are not enough."""
        now = self.now
        since = now if self._since is None else self._since
        self._since = max(now, since)
        regained = self.left + (self._since - since) * self._per_second
        self.left = min(regained, self._capacity) - tokens
        if self.left < 0:
            raise ConnectionFault(ENHANCE_YOUR_CALM, "too many useless frames")

    def earn(self) -> None:
        """Add the tokens for a DATA frame of ours."""
        self.left += 2
