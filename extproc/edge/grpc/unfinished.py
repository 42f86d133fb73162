"""Limits the memory of incomplete messages on one connection.

- From `_NARROW_ABOVE` bytes on, the peer is asked to keep to small windows.
- Above `enough` bytes, only the streams whose messages began first may send more than their
  windows, so that one message after the other becomes complete. The connection's window stays
  open, so these streams can always proceed.
- Above `most` bytes, the message that began last is refused. That takes about 500 streams.
"""

from __future__ import annotations

from itertools import islice

from extproc.edge.grpc.calls import Call
from extproc.edge.http2 import LIMITS, Http2Connection

SERIAL_BYTES = 32 << 20
"""Default of the bytes above which messages are completed one after the other."""

MOST_BYTES = 72 << 20
"""Default of the most bytes of incomplete messages."""

_NARROW_ABOVE = 24 << 20
"""Bytes of incomplete messages above which streams get narrow windows."""

_WIDE_BELOW = 1 << 20
"""Bytes of incomplete messages below which streams get their usual windows again."""

_NARROW = 32_768
"""Bytes of a narrow window."""

_FIRST = 2
"""Calls that may always proceed. With only one, it could happen that the peer waits for a window
of another stream and we wait for the peer."""


class UnfinishedMessages:
    """The calls of a connection whose last message is incomplete."""

    def __init__(self, http2: Http2Connection, enough: int, most: int) -> None:
        self._http2 = http2
        self._windows = http2.windows
        self._enough = enough
        self._most = most
        self._calls: dict[int, Call] = {}
        """Calls by stream, in the order in which their messages began."""
        self.size = 0
        """Bytes of all incomplete messages."""
        self._narrow = False

    def account(self, call: Call, unfinished: int) -> None:
        """Record how many bytes of a call wait for the rest of their message."""
        change = unfinished - call.unfinished
        call.unfinished = unfinished
        self.size += change
        if unfinished:
            self._calls[call.stream] = call
        else:
            self._calls.pop(call.stream, None)
            self._windows.release_kept(call.stream)
        if change < 0:
            self._resume()
        self._set_windows()

    def excess(self) -> Call | None:
        """Return the call whose message began last if there are too many bytes, else None."""
        return next(reversed(self._calls.values())) if self.size > self._most else None

    def admit(self, call: Call, size: int) -> None:
        """Give the peer credit for received bytes of an incomplete message, within the limits."""
        self._windows.keep(call.stream, size)
        first = any(one is call for one in islice(self._calls.values(), _FIRST))
        if first:
            self._windows.widen(call.stream)
        if first or self.size <= self._enough:
            self._windows.release_kept(call.stream)

    def _set_windows(self) -> None:
        """Narrow the windows of all streams under pressure, and restore them afterwards."""
        if self._narrow and self.size < _WIDE_BELOW:
            self._narrow = False
            self._http2.set_stream_window(LIMITS.stream_window)
        elif not self._narrow and self.size > _NARROW_ABOVE:
            self._narrow = True
            self._http2.set_stream_window(_NARROW)

    def _resume(self) -> None:
        """Let the calls send whose messages began first, and more if there is room."""
        room = self._enough - self.size
        for number, call in enumerate(self._calls.values()):
            if number >= _FIRST and room <= 0:
                return
            self._windows.release_kept(call.stream)
            room -= LIMITS.stream_window
