"""What a peer may ask of us, at once and over time."""

from __future__ import annotations

from dataclasses import dataclass

from extproc.edge.http2.frames import (
    DEFAULT_WINDOW,
    LARGEST_MAX_FRAME,
    LARGEST_WINDOW,
    SMALLEST_MAX_FRAME,
)


@dataclass(frozen=True)
class Limits:
    """Of one connection. Raises ValueError for what the protocol does not allow."""

    concurrent_streams: int = 20_000
    """Streams at once; further ones are refused, and clients try them elsewhere. Envoy
    opens a connection for each of its worker threads."""
    stream_window: int = 262_144
    """Bytes of one stream that may lie unconsumed. Not less than a new connection's 65,535,
    which a peer may use before it has heard of anything else."""
    wide_window: int = 1_048_576
    """The same for a stream that `widen` was called for."""
    connection_window: int = 16_777_216
    """Bytes of all streams together that may lie unconsumed: the memory a peer can take."""
    frame_size: int = SMALLEST_MAX_FRAME
    """Bytes of a frame's payload."""
    header_block: int = 65_536
    """Bytes of an encoded header block, over all its frames."""
    header_list: int = 65_536
    """Bytes of a decoded one, with 32 more for each field."""
    header_fields: int = 100
    """Fields of a header block. Envoy sends some fifteen."""
    continuations: int = 16
    """Frames after the first that a header block may take, empty ones included."""
    remembered: int = 4_096
    """Streams that we broke off or ended first, whose last frames may still be on their way."""
    budget: int = 20_000
    """Frames of no use that a peer may send at once: see `Budget`. An Envoy whose 10,000
    requests are all cancelled before we could answer takes half of it."""
    budget_per_second: float = 1_000.0
    """How fast that comes back."""

    def __post_init__(self) -> None:
        windows = self.stream_window, self.connection_window
        if not all(DEFAULT_WINDOW <= window <= LARGEST_WINDOW for window in windows):
            raise ValueError("windows are from 65,535 bytes to 2 GiB")
        if not SMALLEST_MAX_FRAME <= self.frame_size <= LARGEST_MAX_FRAME:
            raise ValueError("frames are from 16,384 bytes to 16 MiB")


LIMITS = Limits()

FIELDS_PER_TOKEN = 16
"""Fields to decode for which a block costs a token, see `Budget`. A block that was seen before
costs none."""


class Budget:
    """A bucket of tokens for what costs a peer little, and us something.

    Each of these takes a token: a PING, SETTINGS, PRIORITY, GOAWAY or unknown frame; a DATA
    frame that carries nothing; a frame on a stream that is closed; a stream that is
    broken off before we have answered, refused, or malformed; a WINDOW_UPDATE that lets
    next to nothing go; each `FIELDS_PER_TOKEN` fields that must be decoded. Whatever we send in
    earnest earns two, as a peer may say of each DATA frame that it has read it, for the stream
    and for the connection.
    """

    __slots__ = ("_capacity", "_per_second", "_since", "left")

    def __init__(self, capacity: int, per_second: float) -> None:
        self._capacity = capacity
        self._per_second = per_second
        self._since: float | None = None
        self.left = float(capacity)

    def spend(self, now: float, tokens: int = 1) -> bool:
        """Whether there were so many."""
        since = now if self._since is None else self._since
        self._since = max(now, since)
        earned = self.left + (self._since - since) * self._per_second
        self.left = min(earned, self._capacity) - tokens
        return self.left >= 0
