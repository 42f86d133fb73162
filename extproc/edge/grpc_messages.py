"""How gRPC puts messages into a stream of HTTP/2: a prefix of five bytes before each.

From "gRPC over HTTP2" (github.com/grpc/grpc, doc/PROTOCOL-HTTP2.md), which also has the statuses.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

_PREFIX = 5

MOST_BYTES = 1 << 25
"""Bytes of one message: 32 MiB, four times the largest body that our Envoy configurations show."""


class Status(IntEnum):
    """How a call ended."""

    OK = 0
    INVALID_ARGUMENT = 3
    NOT_FOUND = 5
    RESOURCE_EXHAUSTED = 8
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14


class CallError(Exception):
    """The call ends here, with a status that says why."""

    def __init__(self, status: Status, message: str) -> None:
        super().__init__(message)
        self.status = status


def framed(message: bytes) -> bytes:
    """A message with its prefix, uncompressed."""
    return b"\0%b%b" % (len(message).to_bytes(4, "big"), message)


class Messages:
    """Finds the messages in the bytes of one stream, however they are cut."""

    __slots__ = ("_buffer", "_missing")

    def __init__(self) -> None:
        self._buffer = bytearray()
        """One buffer, not a list of pieces: a piece of two bytes would take sixty."""
        self._missing = 0
        """Bytes until the buffer must be read again."""

    @property
    def unfinished(self) -> int:
        """Bytes that wait for the rest of their message."""
        return len(self._buffer)

    def feed(self, data: bytes) -> Sequence[bytes]:
        """Return the messages that are complete now. Raises CallError for malformed ones."""
        # Nearly always a frame of HTTP/2 carries one message.
        if not self._buffer and len(data) >= _PREFIX and len(data) == _PREFIX + _length(data):
            return (data[_PREFIX:],)
        self._buffer += data
        self._missing -= len(data)
        return self._complete() if self._missing <= 0 else ()

    def _complete(self) -> list[bytes]:
        buffer = self._buffer
        messages, start = [], 0
        self._missing = _PREFIX
        with memoryview(buffer) as view:
            while len(buffer) - start >= _PREFIX:
                end = start + _PREFIX + _length(buffer, start)
                if end > len(buffer):
                    self._missing = end - start
                    break
                messages.append(bytes(view[start + _PREFIX : end]))
                start = end
        del buffer[:start]
        self._missing -= len(buffer)
        return messages


def _length(data: bytes | bytearray, start: int = 0) -> int:
    """Of the message whose prefix begins there."""
    if data[start]:
        raise CallError(Status.UNIMPLEMENTED, "compressed messages are not understood")
    length = int.from_bytes(data[start + 1 : start + _PREFIX], "big")
    if length > MOST_BYTES:
        raise CallError(Status.RESOURCE_EXHAUSTED, f"a message of more than {MOST_BYTES} bytes")
    return length
