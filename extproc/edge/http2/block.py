"""A header block that comes in several frames."""

from __future__ import annotations

from extproc.edge.http2.errors import ENHANCE_YOUR_CALM, ConnectionFault
from extproc.edge.http2.limits import Limits


class Block:
    """The pieces of a header block. Adding raises ConnectionFault beyond the limits."""

    __slots__ = ("_limits", "_pieces", "_size", "flags", "stream_id")

    def __init__(self, stream_id: int, flags: int, piece: bytes, limits: Limits) -> None:
        self.stream_id = stream_id
        self.flags = flags
        """The flags of the HEADERS frame."""
        self._limits = limits
        self._pieces: list[bytes] = []
        self._size = 0
        self.add(piece)

    def add(self, piece: bytes) -> None:
        """Add the content of the next frame."""
        self._pieces.append(piece)
        self._size += len(piece)
        too_many = len(self._pieces) > 1 + self._limits.continuations
        if too_many or self._size > self._limits.header_block:
            raise ConnectionFault(ENHANCE_YOUR_CALM, "header block too long")

    def whole(self) -> bytes:
        """Return all pieces, joined."""
        return b"".join(self._pieces)
