"""The error codes in use (RFC 9113, section 7), and the exception for connection errors.

The exception never leaves the package.
"""

from __future__ import annotations

from typing import Final

NO_ERROR: Final = 0x0
PROTOCOL_ERROR: Final = 0x1
FLOW_CONTROL_ERROR: Final = 0x3
STREAM_CLOSED: Final = 0x5
FRAME_SIZE_ERROR: Final = 0x6
REFUSED_STREAM: Final = 0x7
CANCEL: Final = 0x8
COMPRESSION_ERROR: Final = 0x9
ENHANCE_YOUR_CALM: Final = 0xB


class ConnectionFault(Exception):
    """An error that ends the connection, because the peer broke one of its rules."""

    def __init__(self, code: int, why: str) -> None:
        super().__init__(why)
        self.code = code
        self.why = why
