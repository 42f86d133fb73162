"""Finds the content of a frame's payload. All functions raise ConnectionFault for wrong lengths."""

from __future__ import annotations

from extproc.edge.http2.errors import FRAME_SIZE_ERROR, PROTOCOL_ERROR, ConnectionFault
from extproc.edge.http2.frames import PADDED, WITH_PRIORITY


def unpadded(data: bytes, start: int, stop: int) -> tuple[int, int]:
    """Return start and stop of a payload without its padding."""
    if start == stop:
        raise ConnectionFault(FRAME_SIZE_ERROR, "no room for the padding's length")
    padding = data[start]
    if padding >= stop - start:
        raise ConnectionFault(PROTOCOL_ERROR, "padding longer than its frame")
    return start + 1, stop - padding


def check_size(size: int, expected: int) -> None:
    if size != expected:
        raise ConnectionFault(FRAME_SIZE_ERROR, "frame of a wrong length")


def bare_headers(data: bytes, start: int, stop: int, flags: int) -> tuple[int, int]:
    """Return start and stop of the header block, without padding and priority."""
    if flags & PADDED:
        start, stop = unpadded(data, start, stop)
    if flags & WITH_PRIORITY:
        start += 5
        if start > stop:
            raise ConnectionFault(FRAME_SIZE_ERROR, "no room for the priority")
    return start, stop
