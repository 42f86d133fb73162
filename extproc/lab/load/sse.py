"""Events out of the bytes of an event stream, however the network has cut them.

Theory of operation. A load generator sees a hundred thousand events a second and needs of
most of them only that they came. So bytes are split where two line ends meet, which is one
call for a whole read, and only what looks unusual (comments, fields other than `data`,
data of several lines, carriage returns) takes the way that the standard describes.
"""

from __future__ import annotations

MAX_EVENT_BYTES = 8 * 2**20
"""Of one event. A server that sends more without an end sends no events."""


class EventTooLongError(ValueError):
    """There is no end in sight."""


class Scanner:
    """The events of one stream. What it says does not depend on where the bytes were cut."""

    __slots__ = ("_after_return", "_rest")

    def __init__(self) -> None:
        self._rest = b""
        self._after_return = False

    def feed(self, data: bytes) -> list[bytes]:
        """The data of the events that end in these bytes. Raises EventTooLongError."""
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
        """The data of an event that the end of the stream has ended.

        The standard drops it, but some servers save the blank line after `[DONE]`.
        """
        data = _data(self._rest)
        self._rest = b""
        return [data] if data else []

    def _with_line_feeds(self, data: bytes) -> bytes:
        """Lines may end with CR, LF or both, and a read may end between the two."""
        if self._after_return and data.startswith(b"\n"):
            data = data[1:]
            self._after_return = False
        if data:
            self._after_return = data.endswith(b"\r")
        return data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")


def _is_one_event(data: bytes) -> bool:
    """Whether the bytes are an everyday event and nothing else, as most reads are."""
    return (
        data.find(b"\n") == len(data) - 2
        and data.endswith(b"\n")
        and data.startswith(b"data: ")
        and b"\r" not in data
    )


def _data(event: bytes) -> bytes:
    """What an event says; nothing where it is only a comment."""
    if event.startswith(b"data: ") and b"\n" not in event:
        return event[6:]
    values = []
    for line in event.split(b"\n"):
        name, _, value = line.partition(b":")
        if name == b"data":
            values.append(value.removeprefix(b" "))
    return b"\n".join(values)
