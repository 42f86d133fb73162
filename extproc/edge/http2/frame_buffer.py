"""The bytes of the peer that are not a whole frame yet."""

from __future__ import annotations

from extproc.edge.http2.errors import PROTOCOL_ERROR, ConnectionFault
from extproc.edge.http2.frames import HEADER_SIZE, PREFACE


class FrameBuffer:
    """The rest of the connection preface, and the beginning of an incomplete frame."""

    def __init__(self) -> None:
        self._preface = PREFACE
        """The rest of the preface."""
        self._tail = bytearray()
        """The beginning of a frame."""
        self._needed = HEADER_SIZE
        """Bytes that the tail must have before parsing it again can succeed."""

    def feed(self, data: bytes) -> bytes:
        """Return bytes that begin with a frame, or none. Raises ConnectionFault without preface."""
        if self._preface:
            data = self._without_preface(data)
        tail = self._tail
        if not tail:
            return data
        if len(tail) + len(data) < self._needed:
            tail += data
            return b""
        data = b"".join((tail, data))
        tail.clear()
        return data

    def keep(self, rest: bytes, needed: int) -> None:
        """Keep the beginning of a frame until there are `needed` bytes of it."""
        self._tail += rest
        self._needed = needed

    def clear(self) -> None:
        """Drop the bytes."""
        self._tail.clear()

    def _without_preface(self, data: bytes) -> bytes:
        size = min(len(data), len(self._preface))
        if data[:size] != self._preface[:size]:
            raise ConnectionFault(PROTOCOL_ERROR, "not HTTP/2 with prior knowledge")
        self._preface = self._preface[size:]
        return data[size:]
