"""The streams of a connection: the open ones, and those that were closed recently."""

from __future__ import annotations

from collections import OrderedDict

from extproc.edge.http2.connection_window import ConnectionWindow
from extproc.edge.http2.errors import PROTOCOL_ERROR, ConnectionFault
from extproc.edge.http2.limits import Limits
from extproc.edge.http2.stream import Stream


class StreamTable:
    """The open streams of a connection, and those that were closed recently.

    A stream that is not open is idle if its number is above `last`, and closed otherwise.
    """

    def __init__(self, limits: Limits, window: ConnectionWindow) -> None:
        self.open: dict[int, Stream] = {}
        self.waiting: OrderedDict[int, Stream] = OrderedDict()
        """Streams with queued data that their own window lets go, in the order of their turns.

        A closed stream leaves at once: otherwise a peer could fill the line.
        """
        self.recent: OrderedDict[int, int] = OrderedDict()
        """Streams that we closed before the peer ended them, with the bytes it may still send."""
        self.last = 0
        """The highest stream that the peer has opened."""
        self.room = limits.concurrent_streams
        """Streams that may be open before the next one is refused; 0 while draining."""
        self._remembered = limits.remembered
        self._window = window

    def close(self, stream: Stream) -> None:
        """Remove an open stream. Remember it if the peer may still send frames on it."""
        self.remove(stream)
        if not stream.peer_ended:
            self.remember(stream.id, stream.receive_window)

    def remove(self, stream: Stream) -> None:
        """Remove an open stream that the peer cannot send on any more."""
        del self.open[stream.id]
        if stream.held:
            self._window.give_back(stream.held)
        if stream.queue:
            self.waiting.pop(stream.id, None)

    def remember(self, stream_id: int, window: int) -> None:
        """Accept up to `window` bytes that the peer sent before it knew of the end."""
        self.recent[stream_id] = window
        if len(self.recent) > self._remembered:
            self.recent.popitem(last=False)

    def check_begun(self, stream_id: int) -> None:
        """Raise ConnectionFault for a stream that is idle, or that a client cannot open."""
        if stream_id > self.last or not stream_id & 1:
            raise ConnectionFault(PROTOCOL_ERROR, "frame of an idle stream")

    def clear(self) -> None:
        """Forget all streams, after the end of the connection."""
        self.open.clear()
        self.waiting.clear()
        self.recent.clear()
