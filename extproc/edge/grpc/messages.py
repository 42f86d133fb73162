"""gRPC's messages in an HTTP/2 stream: each has a prefix of five bytes.

See "gRPC over HTTP2" (github.com/grpc/grpc, doc/PROTOCOL-HTTP2.md), which also lists the statuses.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

_PREFIX = 5

_CRUMB = 1_024
"""Pieces with fewer bytes are joined at once."""

MOST_BYTES = 1 << 24
"""Bytes of one message: 16 MiB, twice the largest body that our Envoy configurations send us."""


class Status(IntEnum):
    """The gRPC statuses that we use."""

    OK = 0
    INVALID_ARGUMENT = 3
    NOT_FOUND = 5
    RESOURCE_EXHAUSTED = 8
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14


class CallError(Exception):
    """An error that ends a call with a status and a message."""

    def __init__(self, status: Status, message: str) -> None:
        super().__init__(message)
        self.status = status


def framed(message: bytes) -> bytes:
    """Return a message with its prefix, uncompressed."""
    return b"\0%b%b" % (len(message).to_bytes(4, "big"), message)


class Messages:
    """The messages in the bytes of one stream."""

    __slots__ = ("_crumbs", "_missing", "_pieces", "unfinished")

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._crumbs = bytearray()
        """Small pieces after the others. A bytes object for each could take 20 times their size."""
        self.unfinished = 0
        """Received bytes of an incomplete message."""
        self._missing = 0
        """Bytes to receive before the pieces are parsed again."""

    def feed(self, data: bytes) -> Sequence[bytes]:
        """Return the messages that these bytes complete. Raises CallError for a bad prefix."""
        # Nearly every DATA frame carries exactly one message.
        if not self.unfinished and len(data) >= _PREFIX and len(data) == _PREFIX + _length(data):
            return (data[_PREFIX:],)
        self.unfinished += len(data)
        self._missing -= len(data)
        if len(data) < _CRUMB:
            self._crumbs += data
        else:
            self._gather_crumbs()
            self._pieces.append(data)
        return self._complete() if self._missing <= 0 else ()

    def _gather_crumbs(self) -> None:
        if self._crumbs:
            self._pieces.append(bytes(self._crumbs))
            self._crumbs = bytearray()

    def _complete(self) -> Sequence[bytes]:
        self._gather_crumbs()
        pieces = self._pieces
        self._pieces = []
        whole = self._one_message(pieces)
        if whole is not None:
            return (whole,)
        data = b"".join(pieces)
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
        self.unfinished = len(left)
        self._missing -= len(left)
        if left:
            self._pieces.append(left)
        return messages

    def _one_message(self, pieces: list[bytes]) -> bytes | None:
        """Join the pieces if they are exactly one message, else return None."""
        first = pieces[0] if pieces else b""
        if len(first) < _PREFIX or self.unfinished != _PREFIX + _length(first):
            return None
        # Remove the prefix first, so that megabytes are copied only once.
        pieces[0] = first[_PREFIX:]
        self.unfinished = self._missing = 0
        return b"".join(pieces)


def _length(data: bytes, start: int = 0) -> int:
    """Return the length of the message whose prefix begins at `start`."""
    if data[start]:
        raise CallError(Status.UNIMPLEMENTED, "compressed messages are not supported")
    length = int.from_bytes(data[start + 1 : start + _PREFIX], "big")
    if length > MOST_BYTES:
        raise CallError(Status.RESOURCE_EXHAUSTED, f"a message of more than {MOST_BYTES} bytes")
    return length
