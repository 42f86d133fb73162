"""A parser of server-sent events, independent of how the network splits the bytes.

A load generator receives a hundred thousand events per second, and needs only the arrival time of
most of them. Therefore, one call splits the bytes of a read at empty lines. Only unusual events
(comments, fields other than `data`, data of several lines, carriage returns) are parsed line by
line as the standard describes.
"""

from __future__ import annotations

MAX_EVENT_BYTES = 8 * 2**20
"""Largest event; a server that sends more without an end is not sending events."""


class EventTooLongError(ValueError):
    """Raised for an event that exceeds the limit."""


class Scanner:
    """The parser of one stream. Its events do not depend on how the bytes are split."""

    __slots__ = ("_after_return", "_rest")

    def __init__(self) -> None:
        self._rest = b""
        self._after_return = False

    def feed(self, data: bytes) -> list[bytes]:
        """Return the data of the events that end in these bytes. Raises EventTooLongError."""
        if _is_one_event(data) and not self._rest and not self._after_return:
            return [event] if (event := data[6:-2]) else []
        if self._after_return or b"\r" in data:
            data = self._with_line_feeds(data)
        if self._rest:
            data = self._rest + data
        parts = data.split(b"\n\n")
        self._rest = parts.pop()
        if len(self._rest) > MAX_EVENT_BYTES:
            raise EventTooLongError(f"an event of more than {MAX_EVENT_BYTES} bytes")
        return [data for part in parts if (data := _data(part))]

    def end(self) -> list[bytes]:
        """Return the data of an event that ends with the stream.

        The standard drops such an event, but some servers omit the empty line after `[DONE]`.
        """
        data = _data(self._rest)
        self._rest = b""
        return [data] if data else []

    def _with_line_feeds(self, data: bytes) -> bytes:
        """Replace line ends by LF: lines end with CR, LF or both, and a read may end between."""
        if self._after_return and data.startswith(b"\n"):
            data = data[1:]
            self._after_return = False
        if data:
            self._after_return = data.endswith(b"\r")
        return data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")


def _is_one_event(data: bytes) -> bool:
    """Return True if the bytes are exactly one usual event, as in most reads."""
    return (
        data.find(b"\n") == len(data) - 2
        and data.endswith(b"\n")
        and data.startswith(b"data: ")
        and b"\r" not in data
    )


def _data(event: bytes) -> bytes:
    """Return the data of an event; empty for a comment."""
    if event.startswith(b"data: ") and b"\n" not in event:
        return event[6:]
    values = []
    for line in event.split(b"\n"):
        name, _, value = line.partition(b":")
        if name == b"data":
            values.append(value.removeprefix(b" "))
    return b"\n".join(values)
