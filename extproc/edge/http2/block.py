"""A header block in several frames, until it is whole."""

from __future__ import annotations

from extproc.edge.http2.errors import ENHANCE_YOUR_CALM, ConnectionFault
from extproc.edge.http2.limits import Limits


class Block:
    """Raises ConnectionFault where it gets too long, or comes in too many pieces."""

    __slots__ = ("_limits", "_pieces", "_size", "flags", "stream")

    def __init__(self, stream: int, flags: int, piece: bytes, limits: Limits) -> None:
        self.stream = stream
        self.flags = flags
        """Of the HEADERS frame."""
        self._limits = limits
        self._pieces: list[bytes] = []
        self._size = 0
        self.add(piece)

    def add(self, piece: bytes) -> None:
        self._pieces.append(piece)
        self._size += len(piece)
        too_many = len(self._pieces) > 1 + self._limits.continuations
        if too_many or self._size > self._limits.header_block:
            raise ConnectionFault(ENHANCE_YOUR_CALM, "header block too long")

    def whole(self) -> bytes:
        return b"".join(self._pieces)
