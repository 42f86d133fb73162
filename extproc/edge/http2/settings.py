"""SETTINGS frames of both sides (RFC 9113, section 6.5)."""

from __future__ import annotations

from typing import Final

from extproc.edge.http2 import frames
from extproc.edge.http2.errors import (
    FLOW_CONTROL_ERROR,
    FRAME_SIZE_ERROR,
    PROTOCOL_ERROR,
    ConnectionFault,
)
from extproc.edge.http2.limits import Limits

HEADER_TABLE_SIZE: Final = 0x1
ENABLE_PUSH: Final = 0x2
MAX_CONCURRENT_STREAMS: Final = 0x3
INITIAL_WINDOW_SIZE: Final = 0x4
MAX_FRAME_SIZE: Final = 0x5
MAX_HEADER_LIST_SIZE: Final = 0x6


def greeting(limits: Limits) -> bytes:
    """Return our first frames: SETTINGS, and a WINDOW_UPDATE for the connection's window."""
    ours = {
        HEADER_TABLE_SIZE: 0,
        MAX_CONCURRENT_STREAMS: limits.concurrent_streams,
        INITIAL_WINDOW_SIZE: limits.stream_window,
        MAX_FRAME_SIZE: limits.frame_size,
        MAX_HEADER_LIST_SIZE: limits.header_list,
    }
    more = limits.connection_window - frames.DEFAULT_WINDOW
    return frames.settings(ours) + (frames.window_update(0, more) if more else b"")


def read(payload: bytes) -> dict[int, int]:
    """Return the settings of a peer's frame, unknown ones included. The last value of each counts.

    Raises ConnectionFault for forbidden values.
    """
    if len(payload) % frames.SETTING.size:
        raise ConnectionFault(FRAME_SIZE_ERROR, "SETTINGS of a wrong length")
    pairs = list(frames.SETTING.iter_unpack(payload))
    for setting, value in pairs:
        _check(setting, value)
    return dict(pairs)


def _check(setting: int, value: int) -> None:
    if setting == INITIAL_WINDOW_SIZE and value > frames.LARGEST_WINDOW:
        raise ConnectionFault(FLOW_CONTROL_ERROR, "initial window too large")
    if setting == ENABLE_PUSH and value > 1:
        raise ConnectionFault(PROTOCOL_ERROR, "ENABLE_PUSH is neither 0 nor 1")
    if setting == MAX_FRAME_SIZE and not (
        frames.SMALLEST_MAX_FRAME <= value <= frames.LARGEST_MAX_FRAME
    ):
        raise ConnectionFault(PROTOCOL_ERROR, "MAX_FRAME_SIZE out of range")
