"""The half of a connection that sends: the peer's windows, and what waits for them.

A stream with bytes to send stands in one of two places. Where its own window is shut it
stands nowhere, until a WINDOW_UPDATE for it or a larger initial window comes. Where it is open, it
stands in a line, and whenever the connection's window has room, those in the line
are served in turns, a frame each. So at rest nobody stands in the line unless the connection's
window is shut; and that window's opening costs what there is to send, however many streams
there are.
"""

from __future__ import annotations

from collections import OrderedDict, deque

from extproc.edge.http2 import frames
from extproc.edge.http2.encoding import NO_TABLE
from extproc.edge.http2.errors import NO_ERROR
from extproc.edge.http2.frames import DATA, DEFAULT_WINDOW, END_STREAM, SMALLEST_MAX_FRAME
from extproc.edge.http2.limits import Budget, Limits
from extproc.edge.http2.stream import Stream

WORTHWHILE = 1_024
"""Bytes that a WINDOW_UPDATE should let go: a peer that opens its window by single bytes
would have us send a frame for each."""

_pack = frames.HEADER.pack


class Outgoing:
    """Calls for streams that are gone, or that we have ended, do nothing."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._budget = Budget(limits.budget, limits.budget_per_second)
        self._streams: dict[int, Stream] = {}
        self._recent: OrderedDict[int, int] = OrderedDict()
        """Streams that we closed before the peer had ended them, and what it may still send."""
        self._output: list[bytes | memoryview] = []
        self._send_window = DEFAULT_WINDOW
        self._initial_send_window = DEFAULT_WINDOW
        self._frame_limit = SMALLEST_MAX_FRAME
        self._waiting: OrderedDict[int, Stream] = OrderedDict()
        """The line. Whoever is closed leaves it at once: a peer could fill it, otherwise."""
        self._stream_window = limits.stream_window
        """Bytes that we let the peer send on a new stream."""
        self._receive_window = limits.connection_window
        """Bytes that we let the peer send on all streams together."""
        self._consumed = 0
        self._table_announced = False

    @property
    def open_streams(self) -> int:
        return len(self._streams)

    def take(self) -> bytes:
        """What is to be written now. Whoever takes it must write it, in order."""
        output = self._output
        if not output:
            return b""
        taken = b"".join(output)
        output.clear()
        return taken

    def start_response(self, stream: int, headers: bytes) -> None:
        """Sends a block of `encode_headers`; once for a stream, and before any `send`."""
        state = self._streams.get(stream)
        if state is not None and not state.ending:
            state.answered = True
            self._send_block(stream, headers, 0)

    def send(self, stream: int, data: bytes) -> None:
        """Sends data, as far as the peer's windows allow, and the rest as they open."""
        state = self._streams.get(stream)
        if state is None or state.ending:
            return
        size = len(data)
        left = state.send_window - size
        all_left = self._send_window - size
        if left < 0 or all_left < 0 or state.queue or not 0 < size <= self._frame_limit:
            self._queue(state, data)
            return
        state.send_window = left
        self._send_window = all_left
        self._budget.left += 2
        self._output += (_pack(size << 8, 0, stream), data)

    def end(self, stream: int, trailers: bytes) -> None:
        """Sends a block with END_STREAM after all that is queued; then the stream is closed.

        A peer that has not ended it yet is told that nothing of it is wanted any more
        (RFC 9113, section 8.1).
        """
        state = self._streams.get(stream)
        if state is None or state.ending:
            return
        state.answered = state.ending = True
        state.trailers = trailers
        if not state.queue:
            self._finish(state)

    def reset(self, stream: int, code: int) -> None:
        """Breaks a stream off."""
        state = self._streams.get(stream)
        if state is not None:
            self._output.append(frames.rst_stream(stream, code))
            self._close(state)

    def queued(self, stream: int) -> int:
        """Bytes that wait for the peer's windows."""
        state = self._streams.get(stream)
        return 0 if state is None else state.queued

    def consumed(self, stream: int, size: int) -> None:
        """So many bytes of request data need no more memory: the peer may send others.

        Windows are opened again by halves, so this may be called for the smallest piece. What
        is left when the stream closes, which is when all that was sent has gone, counts as
        consumed.
        """
        state = self._streams.get(stream)
        if state is None:
            return
        if size > state.held:
            size = state.held
        state.held -= size
        self._reopen(state, size)
        self._credit(size)

    def keep(self, stream: int, size: int) -> None:
        """So many bytes stay in memory, on the caller's account: others may use the connection.

        The stream's own window stays shut by them, until `let_go`.
        """
        state = self._streams.get(stream)
        if state is None:
            return
        if size > state.held:
            size = state.held
        state.held -= size
        state.kept += size
        self._credit(size)

    def let_go(self, stream: int) -> None:
        """The peer may send on the stream in place of all that was kept of it."""
        state = self._streams.get(stream)
        if state is not None and state.kept:
            size = state.kept
            state.kept = 0
            self._reopen(state, size)

    def widen(self, stream: int) -> None:
        """Gives a stream a window of `wide_window`, so that it waits for us less often."""
        state = self._streams.get(stream)
        more = 0 if state is None else self._limits.wide_window - state.window
        if state is not None and more > 0:
            state.window += more
            self._reopen(state, more)

    def _reopen(self, state: Stream, size: int) -> None:
        """Opens a stream's window again, by halves."""
        state.consumed += size
        open_ = not (state.peer_ended or state.ending)
        if open_ and state.consumed * 2 >= state.window:
            self._output.append(frames.window_update(state.id, state.consumed))
            state.receive_window += state.consumed
            state.consumed = 0

    def _credit(self, size: int) -> None:
        """Gives the connection's window back what a stream had of it."""
        self._consumed += size
        if self._consumed * 2 >= self._limits.connection_window:
            self._output.append(frames.window_update(0, self._consumed))
            self._receive_window += self._consumed
            self._consumed = 0

    def _send_block(self, stream: int, block: bytes, flags: int) -> None:
        if not self._table_announced:
            self._table_announced = True
            block = NO_TABLE + block
        self._output.append(frames.header_block(stream, block, flags, self._frame_limit))

    def _finish(self, state: Stream) -> None:
        self._send_block(state.id, state.trailers, END_STREAM)
        if not state.peer_ended:
            self._output.append(frames.rst_stream(state.id, NO_ERROR))
        self._close(state)

    def _close(self, state: Stream) -> None:
        """Forgets a stream, unless frames of it may still be on their way."""
        self._drop(state)
        if not state.peer_ended:
            self._remember(state.id, state.receive_window)

    def _drop(self, state: Stream) -> None:
        del self._streams[state.id]
        if state.held:
            self._credit(state.held)
        if state.queue:
            self._waiting.pop(state.id, None)

    def _remember(self, stream: int, window: int) -> None:
        self._recent[stream] = window
        if len(self._recent) > self._limits.remembered:
            self._recent.popitem(last=False)

    def _queue(self, state: Stream, data: bytes) -> None:
        if not data:
            return
        if state.queue is None:
            state.queue = deque()
        state.queue.append(memoryview(data))
        state.queued += len(data)
        self._line_up(state)
        self._serve()

    def _line_up(self, state: Stream) -> None:
        """In the line or not: to be asked whenever the stream's queue or window has changed."""
        if state.queue and state.send_window > 0:
            self._waiting[state.id] = state
        else:
            self._waiting.pop(state.id, None)

    def _serve(self) -> None:
        """Those in the line, in turns, while the connection's window has room."""
        while self._waiting and self._send_window > 0:
            _, state = self._waiting.popitem(last=False)
            self._send_piece(state)
            if state.queue:
                self._line_up(state)
            elif state.ending:
                self._finish(state)

    def _send_piece(self, state: Stream) -> None:
        assert state.queue
        piece = state.queue[0]
        room = min(state.send_window, self._send_window, self._frame_limit)
        if len(piece) > room:
            state.queue[0] = piece[room:]
            piece = piece[:room]
        else:
            state.queue.popleft()
        size = len(piece)
        state.queued -= size
        state.send_window -= size
        self._send_window -= size
        if size >= WORTHWHILE:
            self._budget.left += 2
        self._output += (_pack(size << 8 | DATA, 0, state.id), piece)
