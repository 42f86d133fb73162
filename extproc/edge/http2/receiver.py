"""The receiving half of a connection: what the frames of a stream mean in its state.

The states, and what each frame means in them, are described in `connection`.
"""

from __future__ import annotations

from struct import Struct

from extproc.edge.http2 import frames
from extproc.edge.http2.block import Block
from extproc.edge.http2.decoding import HeaderDecoder
from extproc.edge.http2.errors import (
    FLOW_CONTROL_ERROR,
    PROTOCOL_ERROR,
    REFUSED_STREAM,
    STREAM_CLOSED,
    ConnectionFault,
)
from extproc.edge.http2.events import Data, Ended, Event, Opened, Reset
from extproc.edge.http2.frames import (
    END_HEADERS,
    END_STREAM,
    LARGEST_WINDOW,
    PADDED,
    WITH_PRIORITY,
)
from extproc.edge.http2.limits import Budget, Limits
from extproc.edge.http2.payload import bare_headers, check_size, unpadded
from extproc.edge.http2.receive_windows import ReceiveWindows
from extproc.edge.http2.sender import Sender
from extproc.edge.http2.stream import Stream
from extproc.edge.http2.streams import StreamTable

INTEGER = Struct(">I")

_new = tuple.__new__  # a NamedTuple's own constructor takes three times as long


class Receiver:
    """The receiving half: it turns the frames of streams into `events`.

    Every method raises ConnectionFault if the peer breaks a rule of the whole connection.
    """

    def __init__(
        self,
        limits: Limits,
        table: StreamTable,
        windows: ReceiveWindows,
        sender: Sender,
        budget: Budget,
        output: list[bytes | memoryview],
    ) -> None:
        self._limits = limits
        self._table = table
        self._streams = table.open
        self._windows = windows
        self._connection_window = windows.connection
        self._sender = sender
        self._budget = budget
        self._output = output
        self._decoder = HeaderDecoder(limits, budget)
        self._requests = self._decoder.requests
        self.events: list[Event] = []
        """The caller takes them, and sets a new list for the next bytes."""
        self.block: Block | None = None
        """A header block whose CONTINUATION frames have not all come yet."""

    def on_data(self, data: bytes, start: int, stop: int, flags: int, stream_id: int) -> None:
        """Handle DATA. The payload is `data[start:stop]`, as in the methods below."""
        size = stop - start
        if flags & PADDED:
            start, stop = unpadded(data, start, stop)
        self._connection_window.take(size)
        stream = self._streams.get(stream_id)
        if stream is None or stream.peer_ended:
            self._on_stray_data(size, flags, stream_id)
            return
        self._windows.take(stream, size)
        if stream.ending:
            self._windows.consumed(stream_id, size)
        else:
            if flags & PADDED:
                self._windows.consumed(stream_id, size - (stop - start))
            if stop > start:
                self.events.append(_new(Data, (stream_id, data[start:stop])))
        if flags & END_STREAM:
            self._peer_ended(stream)
        elif stop == start:
            self._budget.spend()

    def on_headers(self, data: bytes, start: int, stop: int, flags: int, stream_id: int) -> None:
        """Handle HEADERS: a whole block, or the beginning of one."""
        if flags & (PADDED | WITH_PRIORITY):
            start, stop = bare_headers(data, start, stop, flags)
        piece = data[start:stop]
        if flags & END_HEADERS:
            self._on_block(piece, flags, stream_id)
        elif not stream_id:
            raise ConnectionFault(PROTOCOL_ERROR, "HEADERS on stream 0")
        else:
            self.block = Block(stream_id, flags, piece, self._limits)

    def on_continuation(
        self, data: bytes, start: int, stop: int, flags: int, stream_id: int
    ) -> None:
        """Handle CONTINUATION: the next piece of a header block."""
        block = self.block
        if block is None or stream_id != block.stream_id:
            raise ConnectionFault(PROTOCOL_ERROR, "CONTINUATION out of place")
        block.add(data[start:stop])
        if flags & END_HEADERS:
            self.block = None
            self._on_block(block.whole(), block.flags, stream_id)

    def on_rst_stream(self, data: bytes, start: int, stop: int, stream_id: int) -> None:
        """Handle RST_STREAM."""
        check_size(stop - start, 4)
        stream = self._streams.get(stream_id)
        if stream is None:
            self._table.check_begun(stream_id)
            if self._table.recent.pop(stream_id, None) is None:
                self._budget.spend()
            return
        if not stream.ending:
            self.events.append(_new(Reset, (stream_id, INTEGER.unpack_from(data, start)[0])))
        self._table.remove(stream)
        if not stream.answered:
            self._budget.spend()

    def on_window_update(self, stream_id: int, increment: int) -> None:
        """Handle WINDOW_UPDATE of a stream."""
        stream = self._streams.get(stream_id)
        if stream is None:
            self._table.check_begun(stream_id)
            self._budget.spend()
        elif not increment:
            self._stream_error(stream_id, PROTOCOL_ERROR)
        elif stream.send_window + increment > LARGEST_WINDOW:
            self._stream_error(stream_id, FLOW_CONTROL_ERROR)
        else:
            self._sender.open_stream_window(stream, increment)

    def settings_acknowledged(self) -> None:
        """Expect header blocks without a dynamic table: the peer has applied our SETTINGS."""
        self._decoder.acknowledged()

    def end_all(self, code: int) -> None:
        """Report a Reset of each open stream, after the end of the connection."""
        for stream in self._streams.values():
            if not stream.ending:
                self.events.append(Reset(stream.id, code))
        self._table.clear()
        self._requests.clear()

    def _on_stray_data(self, size: int, flags: int, stream_id: int) -> None:
        """Handle DATA on a stream that accepts none."""
        self._table.check_begun(stream_id)
        self._connection_window.give_back(size)
        recent = self._table.recent
        left = recent.get(stream_id)
        if left is None:
            self._stream_error(stream_id, STREAM_CLOSED)
        elif flags & END_STREAM:
            del recent[stream_id]
        else:
            recent[stream_id] = left - size
            if not 0 < size <= left:
                self._budget.spend()

    def _peer_ended(self, stream: Stream) -> None:
        stream.peer_ended = True
        if not stream.ending:
            self.events.append(_new(Ended, (stream.id,)))

    def _on_block(self, block: bytes, flags: int, stream_id: int) -> None:
        """Handle a whole header block."""
        table = self._table
        stream = self._streams.get(stream_id)
        if stream is not None:
            self._on_trailers(stream, block, flags)
            return
        if stream_id <= table.last or not stream_id & 1:
            self._on_stray_block(block, flags, stream_id)
            return
        headers = self._requests.get(block)
        if headers is None:
            headers = self._decoder.request(block)
        table.last = stream_id
        if headers is None:
            self._turn_away(stream_id, PROTOCOL_ERROR)
        elif len(self._streams) >= table.room:
            self._turn_away(stream_id, REFUSED_STREAM)
        else:
            windows = self._sender.initial_window, self._windows.initial
            stream = self._streams[stream_id] = Stream(stream_id, *windows)
            self.events.append(_new(Opened, (stream_id, headers)))
            if flags & END_STREAM:
                self._peer_ended(stream)

    def _turn_away(self, stream_id: int, code: int) -> None:
        """Refuse a new stream. The peer may have sent some of its body already."""
        self._stream_error(stream_id, code)
        self._table.remember(stream_id, self._windows.initial)

    def _on_trailers(self, stream: Stream, block: bytes, flags: int) -> None:
        well_formed = self._decoder.trailers(block)
        if stream.peer_ended:
            self._stream_error(stream.id, STREAM_CLOSED)
        elif not well_formed or not flags & END_STREAM:
            self._stream_error(stream.id, PROTOCOL_ERROR)
        else:
            self._peer_ended(stream)

    def _on_stray_block(self, block: bytes, flags: int, stream_id: int) -> None:
        """Handle the trailers of a stream that we have closed."""
        recent = self._table.recent
        if stream_id not in recent:
            raise ConnectionFault(PROTOCOL_ERROR, "HEADERS of a stream that cannot be opened")
        self._decoder.trailers(block)
        if flags & END_STREAM:
            del recent[stream_id]
        else:
            self._budget.spend()

    def _stream_error(self, stream_id: int, code: int) -> None:
        """Reset a stream on which the peer broke a rule, or that we refuse to open."""
        stream = self._streams.get(stream_id)
        if stream is None:
            self._output.append(frames.rst_stream(stream_id, code))
        else:
            if not stream.ending:
                self.events.append(Reset(stream_id, code))
            self._sender.reset(stream_id, code)
        self._budget.spend()
