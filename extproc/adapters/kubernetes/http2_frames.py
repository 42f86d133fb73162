"""Splits the bytes of an HTTP/2 connection at GOAWAY frames.

The library h2 ends a connection at the first GOAWAY. An API server sends it before it stops, or to
balance its load, and expects the client to finish its streams. So h2 never reads these frames.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

MAX_FRAME = 16_384
"""The largest payload, which is HTTP/2's default."""

_HEADER = 9
_GOAWAY = 7
_GOAWAY_FIELDS = 8
_ID_MASK = 2**31 - 1


class GoAway(NamedTuple):
    """The peer accepts no more streams."""

    last_stream: int
    """The last stream that the peer has processed, or may process."""
    code: int


class FrameSplitter:
    """Yields received bytes in runs of whole frames, and each GOAWAY on its own."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> Iterator[bytes | GoAway]:
        """Yield the frames that are complete. Raises ConnectionError if one is too large."""
        data = self._rest + data
        start = position = 0
        try:
            while len(data) - position >= _HEADER:
                size = int.from_bytes(data[position : position + 3], "big")
                if size > MAX_FRAME:
                    raise ConnectionError(f"HTTP/2: frame of {size} bytes")
                end = position + _HEADER + size
                if end > len(data):
                    break
                if data[position + 3] == _GOAWAY:
                    yield from _run(data[start:position])
                    yield _goaway(data[position + _HEADER : end])
                    start = end
                position = end
            yield from _run(data[start:position])
        finally:
            self._rest = data[position:]


def _run(frames: bytes) -> Iterator[bytes]:
    if frames:
        yield frames


def _goaway(payload: bytes) -> GoAway:
    if len(payload) < _GOAWAY_FIELDS:
        raise ConnectionError("HTTP/2: GOAWAY without its fields")
    last = int.from_bytes(payload[:4], "big") & _ID_MASK
    return GoAway(last, int.from_bytes(payload[4:8], "big"))
