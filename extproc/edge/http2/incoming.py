"""The half of a connection that receives: what the frames of a stream mean in its state.

The states, and what each frame means in them, are described in `connection`.
"""

from __future__ import annotations

from struct import Struct

from extproc.edge.http2 import frames
from extproc.edge.http2.decoding import HeaderDecoder
from extproc.edge.http2.errors import (
    ENHANCE_YOUR_CALM,
    FLOW_CONTROL_ERROR,
    PROTOCOL_ERROR,
    REFUSED_STREAM,
    STREAM_CLOSED,
    ConnectionFault,
)
from extproc.edge.http2.events import Data, Ended, Event, Opened, Reset
from extproc.edge.http2.frames import END_STREAM, LARGEST_WINDOW, PADDED
from extproc.edge.http2.limits import FIELDS_PER_TOKEN, Limits
from extproc.edge.http2.outgoing import WORTHWHILE, Outgoing
from extproc.edge.http2.payload import check_size, unpadded
from extproc.edge.http2.stream import Stream

INTEGER = Struct(">I")

_new = tuple.__new__  # a NamedTuple's own takes three times as long


class Incoming(Outgoing):
    """Raises ConnectionFault where the peer breaks a rule of the connection."""

    def __init__(self, limits: Limits) -> None:
        super().__init__(limits)
        self._decoder = HeaderDecoder(limits)
        self._kept = self._decoder.kept
        self._last_stream = 0
        self._room = limits.concurrent_streams
        """Streams that there may be before one is refused; none while we drain."""
        self._events: list[Event] = []
        self._now = 0.0

    def _on_data(self, data: bytes, start: int, stop: int, flags: int, stream: int) -> None:
        size = stop - start
        if flags & PADDED:
            start, stop = unpadded(data, start, stop)
        self._receive_window -= size
        if self._receive_window < 0:
            raise ConnectionFault(FLOW_CONTROL_ERROR, "more data than the connection's window")
        state = self._streams.get(stream)
        if state is None or state.peer_ended:
            self._on_stray_data(size, flags, stream)
            return
        state.receive_window -= size
        if state.receive_window < 0:
            raise ConnectionFault(FLOW_CONTROL_ERROR, "more data than the stream's window")
        state.held += size
        if state.ending:
            self.consumed(stream, size)
        else:
            if flags & PADDED:
                self.consumed(stream, size - (stop - start))
            if stop > start:
                self._events.append(_new(Data, (stream, data[start:stop])))
        if flags & END_STREAM:
            self._peer_ended(state)
        elif stop == start:
            self._spend()

    def _on_stray_data(self, size: int, flags: int, stream: int) -> None:
        """On a stream that takes none; it counts for the connection's window all the same."""
        self._check_begun(stream)
        self._credit(size)
        left = self._recent.get(stream)
        if left is None:
            self._stream_error(stream, STREAM_CLOSED)
        elif flags & END_STREAM:
            del self._recent[stream]
        else:
            self._recent[stream] = left - size
            if not 0 < size <= left:
                self._spend()

    def _peer_ended(self, state: Stream) -> None:
        state.peer_ended = True
        if not state.ending:
            self._events.append(_new(Ended, (state.id,)))

    def _on_block(self, block: bytes, flags: int, stream: int) -> None:
        state = self._streams.get(stream)
        if state is not None:
            self._on_trailers(state, block, flags)
            return
        if stream <= self._last_stream or not stream & 1:
            self._on_stray_block(block, flags, stream)
            return
        headers = self._kept.get(block)
        if headers is None:
            headers = self._decoder.request(block)
            self._pay_for_fields()
        self._last_stream = stream
        if headers is None:
            self._turn_away(stream, PROTOCOL_ERROR)
        elif len(self._streams) >= self._room:
            self._turn_away(stream, REFUSED_STREAM)
        else:
            window = self._stream_window
            state = self._streams[stream] = Stream(stream, self._initial_send_window, window)
            ends = flags & END_STREAM != 0
            self._events.append(_new(Opened, (stream, headers, ends)))
            if ends:
                self._peer_ended(state)

    def _turn_away(self, stream: int, code: int) -> None:
        """A stream that never was: its body may be on its way, though."""
        self._stream_error(stream, code)
        self._remember(stream, self._stream_window)

    def _on_trailers(self, state: Stream, block: bytes, flags: int) -> None:
        well_formed = self._decoder.trailers(block)
        self._pay_for_fields()
        if state.peer_ended:
            self._stream_error(state.id, STREAM_CLOSED)
        elif not well_formed or not flags & END_STREAM:
            self._stream_error(state.id, PROTOCOL_ERROR)
        else:
            self._peer_ended(state)

    def _on_stray_block(self, block: bytes, flags: int, stream: int) -> None:
        if stream not in self._recent:
            raise ConnectionFault(PROTOCOL_ERROR, "HEADERS of a stream that cannot be opened")
        self._decoder.trailers(block)
        self._pay_for_fields()
        if flags & END_STREAM:
            del self._recent[stream]
        else:
            self._spend()

    def _on_rst_stream(self, data: bytes, start: int, stop: int, _: int, stream: int) -> None:
        check_size(stop - start, 4)
        state = self._streams.get(stream)
        if state is None:
            self._check_begun(stream)
            if self._recent.pop(stream, None) is None:
                self._spend()
            return
        if not state.ending:
            self._events.append(_new(Reset, (stream, INTEGER.unpack_from(data, start)[0])))
        self._drop(state)
        if not state.answered:
            self._spend()

    def _on_stream_window(self, stream: int, increment: int) -> None:
        state = self._streams.get(stream)
        if state is None:
            self._check_begun(stream)
            self._spend()
        elif not increment:
            self._stream_error(stream, PROTOCOL_ERROR)
        elif state.send_window + increment > LARGEST_WINDOW:
            self._stream_error(stream, FLOW_CONTROL_ERROR)
        else:
            state.send_window += increment
            if not state.queue or increment < WORTHWHILE:
                self._spend()
            self._line_up(state)
            self._serve()

    def _check_begun(self, stream: int) -> None:
        """Raises ConnectionFault for a stream that is idle, or that cannot be."""
        if stream > self._last_stream or not stream & 1:
            raise ConnectionFault(PROTOCOL_ERROR, "frame of an idle stream")

    def _spend(self, tokens: int = 1) -> None:
        if not self._budget.spend(self._now, tokens):
            raise ConnectionFault(ENHANCE_YOUR_CALM, "too many frames of no use")

    def _pay_for_fields(self) -> None:
        tokens = self._decoder.fields // FIELDS_PER_TOKEN
        if tokens:
            self._spend(tokens)

    def _stream_error(self, stream: int, code: int) -> None:
        """The peer broke a rule of one stream, which ends there."""
        self._output.append(frames.rst_stream(stream, code))
        state = self._streams.get(stream)
        if state is not None:
            if not state.ending:
                self._events.append(Reset(stream, code))
            self._close(state)
        self._spend()
