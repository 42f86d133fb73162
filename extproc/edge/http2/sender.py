"""The sending half of a connection: the peer's windows, and the data that waits for them.

A stream with queued data is in one of two states. While its own window is shut, it does nothing
until a WINDOW_UPDATE or a larger initial window opens it. While its own window is open, it waits
in the line `StreamTable.waiting`. When the connection's window has room, the streams in the line
send in turns, one frame each. Between calls, the line is therefore empty unless the connection's
window is shut. When that window opens, the cost depends on what there is to send, and not on the
number of streams.
"""

from __future__ import annotations

from collections import deque

from extproc.edge.http2 import frames, settings
from extproc.edge.http2.encoding import NO_TABLE
from extproc.edge.http2.errors import (
    FLOW_CONTROL_ERROR,
    NO_ERROR,
    PROTOCOL_ERROR,
    ConnectionFault,
)
from extproc.edge.http2.frames import (
    DATA,
    DEFAULT_WINDOW,
    END_STREAM,
    LARGEST_WINDOW,
    SMALLEST_MAX_FRAME,
)
from extproc.edge.http2.limits import Budget
from extproc.edge.http2.stream import Stream
from extproc.edge.http2.streams import StreamTable

_WORTHWHILE = 1_024
"""Bytes that a WINDOW_UPDATE should open: for each smaller one, the peer pays from its budget."""

_pack = frames.HEADER.pack


class Sender:
    """The sending half. Calls for streams that are closed, or that we have ended, do nothing."""

    def __init__(
        self, table: StreamTable, budget: Budget, output: list[bytes | memoryview]
    ) -> None:
        self._table = table
        self._streams = table.open
        self._waiting = table.waiting
        self._budget = budget
        self._output = output
        self._window = DEFAULT_WINDOW
        """Bytes that the peer lets us send on all streams together."""
        self.initial_window = DEFAULT_WINDOW
        """Bytes that the peer lets us send on a new stream."""
        self._frame_limit = SMALLEST_MAX_FRAME
        self._table_announced = False

    def start_response(self, stream_id: int, headers: bytes) -> None:
        """Send a block of `encode_headers`, once for each stream and before any `send`."""
        stream = self._streams.get(stream_id)
        if stream is not None and not stream.ending:
            stream.answered = True
            self._send_block(stream_id, headers, 0)

    def send(self, stream_id: int, data: bytes) -> None:
        """Send data as far as the peer's windows allow, and the rest when they open."""
        stream = self._streams.get(stream_id)
        if stream is None or stream.ending:
            return
        size = len(data)
        left = stream.send_window - size
        all_left = self._window - size
        if left < 0 or all_left < 0 or stream.queue or not 0 < size <= self._frame_limit:
            self._queue(stream, data)
            return
        stream.send_window = left
        self._window = all_left
        self._budget.earn()
        self._output += (_pack(size << 8, 0, stream_id), data)

    def end(self, stream_id: int, trailers: bytes) -> None:
        """Send a block with END_STREAM after all queued data; then close the stream.

        If the peer has not ended the stream, RST_STREAM with NO_ERROR asks it to stop sending
        (RFC 9113, section 8.1).
        """
        stream = self._streams.get(stream_id)
        if stream is None or stream.ending:
            return
        stream.answered = stream.ending = True
        stream.trailers = trailers
        if not stream.queue:
            self._finish(stream)

    def reset(self, stream_id: int, code: int) -> None:
        """Send RST_STREAM and close the stream at once, even if its end waits in a queue."""
        stream = self._streams.get(stream_id)
        if stream is not None:
            self._output.append(frames.rst_stream(stream_id, code))
            self._table.close(stream)

    def queued(self, stream_id: int) -> int:
        """Return the bytes that wait for the peer's windows."""
        stream = self._streams.get(stream_id)
        return 0 if stream is None else stream.queued

    def apply_settings(self, peer: dict[int, int]) -> None:
        """Apply the peer's frame size and initial window. Raises ConnectionFault."""
        limit = peer.get(settings.MAX_FRAME_SIZE, self._frame_limit)
        self._frame_limit = min(limit, frames.FRAME_LIMIT)
        more = peer.get(settings.INITIAL_WINDOW_SIZE, self.initial_window) - self.initial_window
        if more:
            self.initial_window += more
            self._move_windows(more)

    def open_window(self, increment: int) -> None:
        """Let all streams send more bytes together. Raises ConnectionFault."""
        if not increment:
            raise ConnectionFault(PROTOCOL_ERROR, "WINDOW_UPDATE of 0 bytes")
        self._window += increment
        if self._window > LARGEST_WINDOW:
            raise ConnectionFault(FLOW_CONTROL_ERROR, "the connection's window too large")
        if not self._waiting or increment < _WORTHWHILE:
            self._budget.spend()
        self._serve()

    def open_stream_window(self, stream: Stream, increment: int) -> None:
        """Let a stream send more bytes. The caller has checked the window's new size."""
        stream.send_window += increment
        if not stream.queue or increment < _WORTHWHILE:
            self._budget.spend()
        self._line_up(stream)
        self._serve()

    def _move_windows(self, more: int) -> None:
        """Move the windows of all streams with the initial window; they may become negative."""
        self._budget.spend(len(self._streams) // 100)
        for stream in self._streams.values():
            stream.send_window += more
            if stream.send_window > LARGEST_WINDOW:
                raise ConnectionFault(FLOW_CONTROL_ERROR, "a stream's window too large")
            if stream.queue:
                self._line_up(stream)
        self._serve()

    def _send_block(self, stream_id: int, block: bytes, flags: int) -> None:
        if not self._table_announced:
            self._table_announced = True
            block = NO_TABLE + block
        self._output.append(frames.header_block(stream_id, block, flags, self._frame_limit))

    def _finish(self, stream: Stream) -> None:
        self._send_block(stream.id, stream.trailers, END_STREAM)
        if not stream.peer_ended:
            self._output.append(frames.rst_stream(stream.id, NO_ERROR))
        self._table.close(stream)

    def _queue(self, stream: Stream, data: bytes) -> None:
        if not data:
            return
        if stream.queue is None:
            stream.queue = deque()
        stream.queue.append(memoryview(data))
        stream.queued += len(data)
        self._line_up(stream)
        self._serve()

    def _line_up(self, stream: Stream) -> None:
        """Put a stream into the line or take it out, after its queue or its window changed."""
        if stream.queue and stream.send_window > 0:
            self._waiting[stream.id] = stream
        else:
            self._waiting.pop(stream.id, None)

    def _serve(self) -> None:
        """Send from the streams in the line, in turns, while the connection's window has room."""
        while self._waiting and self._window > 0:
            _, stream = self._waiting.popitem(last=False)
            self._send_piece(stream)
            if stream.queue:
                self._line_up(stream)
            elif stream.ending:
                self._finish(stream)

    def _send_piece(self, stream: Stream) -> None:
        assert stream.queue
        piece = stream.queue[0]
        room = min(stream.send_window, self._window, self._frame_limit)
        if len(piece) > room:
            stream.queue[0] = piece[room:]
            piece = piece[:room]
        else:
            stream.queue.popleft()
        size = len(piece)
        stream.queued -= size
        stream.send_window -= size
        self._window -= size
        if size >= _WORTHWHILE:
            self._budget.earn()
        self._output += (_pack(size << 8 | DATA, 0, stream.id), piece)
