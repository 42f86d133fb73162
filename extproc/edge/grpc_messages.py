"""How gRPC puts messages into a stream of HTTP/2: a prefix of five bytes before each.

From "gRPC over HTTP2" (github.com/grpc/grpc, doc/PROTOCOL-HTTP2.md), which also has the statuses.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

_PREFIX = 5

MOST_BYTES = 1 << 26
"""Of one message: 64 MB, a thousand times what our Envoy configurations show of a body."""


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

    __slots__ = ("_missing", "_pieces")

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._missing = 0
        """Bytes until the next look is worth while."""

    def feed(self, data: bytes) -> Sequence[bytes]:
        """The messages that are complete now. Raises CallError for what is none."""
        # Nearly always a frame of HTTP/2 carries one message.
        if not self._pieces and len(data) >= _PREFIX and len(data) == _PREFIX + _length(data):
            return (data[_PREFIX:],)
        self._pieces.append(data)
        self._missing -= len(data)
        return self._complete() if self._missing <= 0 else ()

    def _complete(self) -> list[bytes]:
        data = b"".join(self._pieces)
        messages, start = [], 0
        self._missing = _PREFIX
        while len(data) - start >= _PREFIX:
            end = start + _PREFIX + _length(data, start)
            if end > len(data):
                self._missing = end - start
                break
            messages.append(data[start + _PREFIX : end])
            start = end
        left = data[start:]
        self._missing -= len(left)
        self._pieces = [left] if left else []
        return messages


def _length(data: bytes, start: int = 0) -> int:
    """Of the message whose prefix begins there."""
    if data[start]:
        raise CallError(Status.UNIMPLEMENTED, "compressed messages are not understood")
    length = int.from_bytes(data[start + 1 : start + _PREFIX], "big")
    if length > MOST_BYTES:
        raise CallError(Status.RESOURCE_EXHAUSTED, f"a message of more than {MOST_BYTES} bytes")
    return length
