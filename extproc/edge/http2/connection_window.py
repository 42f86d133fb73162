"""The connection's receive window, which all its streams share."""

from __future__ import annotations

from extproc.edge.http2 import frames
from extproc.edge.http2.errors import FLOW_CONTROL_ERROR, ConnectionFault


class ConnectionWindow:
    """Bytes that the peer may send on all streams together.

    `output` collects the frames to send, here WINDOW_UPDATE.
    """

    def __init__(self, size: int, output: list[bytes | memoryview]) -> None:
        self._size = size
        self._output = output
        self.left = size
        """Bytes that the peer may still send."""
        self.consumed = 0
        """Consumed bytes that no WINDOW_UPDATE has given back yet."""

    def take(self, size: int) -> None:
        """Count received bytes. Raises ConnectionFault if the window had no room for them."""
        self.left -= size
        if self.left < 0:
            raise ConnectionFault(FLOW_CONTROL_ERROR, "more data than the connection's window")

    def give_back(self, size: int) -> None:
        """Count consumed bytes. Open the window again when they are half of its size."""
        self.consumed += size
        if self.consumed * 2 >= self._size:
            self._output.append(frames.window_update(0, self.consumed))
            self.left += self.consumed
            self.consumed = 0
