"""The encoding of frames (RFC 9113, sections 4 and 6).

The names are plain integers instead of an enum, because a lookup of an enum's member would cost
time for every frame.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

DATA: Final = 0x0
HEADERS: Final = 0x1
PRIORITY: Final = 0x2
RST_STREAM: Final = 0x3
SETTINGS: Final = 0x4
PUSH_PROMISE: Final = 0x5
PING: Final = 0x6
GOAWAY: Final = 0x7
WINDOW_UPDATE: Final = 0x8
CONTINUATION: Final = 0x9

ACK: Final = 0x1
END_STREAM: Final = 0x1
END_HEADERS: Final = 0x4
PADDED: Final = 0x8
WITH_PRIORITY: Final = 0x20

HEADER_SIZE: Final = 9
SMALLEST_MAX_FRAME: Final = 16_384
LARGEST_MAX_FRAME: Final = 16_777_215
FRAME_LIMIT: Final = 65_536
"""Most bytes of a DATA frame that we send, even if the peer allows more. A stream sends one frame
in each turn."""
LARGEST_WINDOW: Final = 0x7FFF_FFFF
LARGEST_STREAM: Final = 0x7FFF_FFFF
DEFAULT_WINDOW: Final = 65_535

HEADER: Final = Struct(">IBI")
"""Length (24 bits) and type (8 bits) as one integer, then flags and stream."""

SETTING: Final = Struct(">HI")
"""Identifier and value of a setting."""

_TWO: Final = Struct(">IBIII")
_ONE: Final = Struct(">IBII")
_PING: Final = Struct(">IBI8s")


def rst_stream(stream: int, code: int) -> bytes:
    return _ONE.pack(4 << 8 | RST_STREAM, 0, stream, code)


def window_update(stream: int, increment: int) -> bytes:
    return _ONE.pack(4 << 8 | WINDOW_UPDATE, 0, stream, increment)


def ping(payload: bytes, flags: int = 0) -> bytes:
    """Return a PING with a payload of eight bytes."""
    return _PING.pack(8 << 8 | PING, flags, 0, payload)


def goaway(last_stream: int, code: int, why: bytes = b"") -> bytes:
    """Return a GOAWAY. `why` is for people who read a trace of the connection."""
    return _TWO.pack(8 + len(why) << 8 | GOAWAY, 0, 0, last_stream, code) + why


def settings(pairs: dict[int, int]) -> bytes:
    payload = b"".join(SETTING.pack(*pair) for pair in pairs.items())
    return HEADER.pack(len(payload) << 8 | SETTINGS, 0, 0) + payload


SETTINGS_ACK: Final = HEADER.pack(SETTINGS, ACK, 0)


def header_block(stream: int, block: bytes, flags: int, limit: int) -> bytes:
    """Return a header block as HEADERS and CONTINUATION frames of at most `limit` bytes."""
    size = len(block)
    if size <= limit:
        return HEADER.pack(size << 8 | HEADERS, flags | END_HEADERS, stream) + block
    parts = [HEADER.pack(limit << 8 | HEADERS, flags, stream), block[:limit]]
    for start in range(limit, size, limit):
        part = block[start : start + limit]
        last = END_HEADERS if start + limit >= size else 0
        parts += HEADER.pack(len(part) << 8 | CONTINUATION, last, stream), part
    return b"".join(parts)
