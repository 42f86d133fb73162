"""Flow control of what the peer sends: the receive windows of the streams.

The windows open again by halves, so that most frames need no WINDOW_UPDATE.
"""

from __future__ import annotations

from collections import deque

from extproc.edge.http2 import frames, settings
from extproc.edge.http2.connection_window import ConnectionWindow
from extproc.edge.http2.errors import FLOW_CONTROL_ERROR, ConnectionFault
from extproc.edge.http2.limits import Limits
from extproc.edge.http2.stream import Stream
from extproc.edge.http2.streams import StreamTable


class ReceiveWindows:
    """The windows that limit the peer. Calls for streams that are not open do nothing."""

    def __init__(
        self,
        limits: Limits,
        table: StreamTable,
        connection: ConnectionWindow,
        output: list[bytes | memoryview],
    ) -> None:
        self._wide = limits.wide_window
        self._streams = table.open
        self.connection = connection
        self._output = output
        self.initial = limits.stream_window
        """Bytes that the peer may send on a new stream."""
        self._unacknowledged = deque([limits.stream_window])
        """Initial window sizes that we have sent and the peer has not acknowledged."""

    def consumed(self, stream_id: int, size: int) -> None:
        """Let the peer send as many bytes of request data as were processed.

        Bytes that are still held when the stream closes count as consumed.
        """
        stream = self._streams.get(stream_id)
        if stream is None:
            return
        if size > stream.held:
            size = stream.held
        stream.held -= size
        self._reopen(stream, size)
        self.connection.give_back(size)

    def keep(self, stream_id: int, size: int) -> None:
        """Count bytes against the stream's window only. Other streams can use the connection's.

        The caller keeps them in memory, and accounts for them until `release_kept`.
        """
        stream = self._streams.get(stream_id)
        if stream is None:
            return
        if size > stream.held:
            size = stream.held
        stream.held -= size
        stream.kept += size
        self.connection.give_back(size)

    def release_kept(self, stream_id: int) -> None:
        """Let the peer send as many bytes on the stream as were kept."""
        stream = self._streams.get(stream_id)
        if stream is not None and stream.kept:
            size = stream.kept
            stream.kept = 0
            self._reopen(stream, size)

    def widen(self, stream_id: int) -> None:
        """Give a stream a window of `wide_window` bytes, so that the peer waits less often."""
        stream = self._streams.get(stream_id)
        more = 0 if stream is None else self._wide - stream.window
        if stream is not None and more > 0:
            stream.window += more
            self._reopen(stream, more)

    def set_initial(self, size: int) -> None:
        """Ask the peer for another initial window. It holds for open streams, too.

        The new size takes effect when the peer has acknowledged it.
        """
        self._output.append(frames.settings({settings.INITIAL_WINDOW_SIZE: size}))
        self._unacknowledged.append(size)

    def acknowledged(self) -> None:
        """Apply our oldest unacknowledged SETTINGS, as the peer has."""
        if not self._unacknowledged:
            return
        size = self._unacknowledged.popleft()
        more = size - self.initial
        if more:
            self.initial = size
            for stream in self._streams.values():
                stream.window += more
                stream.receive_window += more
                # Without this, a peer whose window is shut now would wait forever.
                self._reopen(stream, 0)

    def take(self, stream: Stream, size: int) -> None:
        """Count bytes received on a stream. Raises ConnectionFault if they exceed its window."""
        stream.receive_window -= size
        if stream.receive_window < 0:
            raise ConnectionFault(FLOW_CONTROL_ERROR, "more data than the stream's window")
        stream.held += size

    def _reopen(self, stream: Stream, size: int) -> None:
        """Count consumed bytes of a stream. Open its window when they are half of its size."""
        stream.consumed += size
        open_ = not (stream.peer_ended or stream.ending)
        if open_ and stream.consumed * 2 >= stream.window:
            self._output.append(frames.window_update(stream.id, stream.consumed))
            stream.receive_window += stream.consumed
            stream.consumed = 0
