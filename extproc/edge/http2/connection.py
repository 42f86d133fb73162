"""The server's side of one HTTP/2 connection (RFC 9113): bytes in, events and bytes out.

Theory of operation
-------------------
`receive` takes what came from the peer and returns what it means; the other calls answer;
`take` returns what is to be written. There is no socket here, no clock and no task, and no
call raises, whatever the peer sends: a peer that breaks the rules gets a GOAWAY, every open
stream a Reset, and `closed` is true from then on.

A stream is in the table while it is open, and the table is all there is to its state:

    IDLE     not in the table, its number above the last that we have seen
    OPEN     in the table; both sides may send
    HALF     `peer_ended`: the peer has sent END_STREAM, and may send no more
    ENDING   `ending`: we have ended it, but what we sent before waits for a window; nothing
             is told of it any more, and what comes on it is thrown away
    CLOSED   not in the table, its number not above the last that we have seen

    frame           IDLE      OPEN      HALF           ENDING    CLOSED
    HEADERS         OPEN (a)  HALF (b)  STREAM_CLOSED  as OPEN   a fault, or nothing (c)
    DATA            a fault   OPEN (d)  STREAM_CLOSED  as OPEN   STREAM_CLOSED, or nothing (c)
    RST_STREAM      a fault   CLOSED    CLOSED         CLOSED    nothing
    WINDOW_UPDATE   a fault   we send what waits                 nothing
    PRIORITY        nothing, whatever the state

(a) HALF if it has END_STREAM. Refused beyond the limit and while we drain; malformed, it
is a stream error. Lower streams that are idle are closed by it. (b) These are
trailers, so END_STREAM must be there, else it is a stream error. (c) Nothing while the frame may
have been under way when we closed the stream; `remembered` streams are known for that.
(d) HALF with END_STREAM. What a state calls by an error's name is a stream error: the
stream is reset. A fault ends the connection.

Which frames may come at all, in any state of any stream, is said by one of three tables,
each with a handler for every type of frame: before the peer's first SETTINGS, between
header blocks, and within one.

Flow control
------------
What the peer may send is opened again by `consumed`, which the server calls for each Data
once its answers do not wait in `queued`; until then, and until what an ended stream has queued
is gone, it counts as held. So a peer that does not read its answers can have us hold
no more of requests than a window for each stream, and the connection's for all of them.

The server accounts for the data of incomplete messages itself: `keep` opens the connection's
window for them and `let_go` the stream's.

This cannot lock up: what is held waits for the peer to read answers, which it can do whatever
we let it send, and all of it is consumed then; so a window that is shut has been consumed by
more than half in the end, and half is when it is opened again. One stream can keep others
waiting only if each of some 128 (16 MiB by 128 KiB) holds all that it may, as nobody reads
its answers. It gives that back with its end, which whoever lets a stream lie has to see to.

What is left to the server: to stop reading from a peer that does not read what `take` gives,
and to end a connection that has been idle for too long. What a peer can have us
write without reading is bounded by the budget, see `Budget`, and by the windows it opens.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from extproc.edge.http2 import frames, settings
from extproc.edge.http2.block import Block
from extproc.edge.http2.errors import (
    CANCEL,
    FLOW_CONTROL_ERROR,
    FRAME_SIZE_ERROR,
    NO_ERROR,
    PROTOCOL_ERROR,
    ConnectionFault,
)
from extproc.edge.http2.events import Event, Reset
from extproc.edge.http2.frames import (
    ACK,
    END_HEADERS,
    LARGEST_STREAM,
    LARGEST_WINDOW,
    PADDED,
    PREFACE,
    WITH_PRIORITY,
)
from extproc.edge.http2.incoming import INTEGER, Incoming
from extproc.edge.http2.limits import LIMITS, Limits
from extproc.edge.http2.outgoing import WORTHWHILE
from extproc.edge.http2.payload import bare_headers, check_size

_unpack = frames.HEADER.unpack_from

_DRAINING = b"draining"

Handler = Callable[["Http2Connection", bytes, int, int, int, int], None]
"""Of a frame: the bytes, where its payload starts and stops, its flags, its stream."""


class Http2Connection(Incoming):
    """One connection, from the first byte on. See the module's docstring."""

    def __init__(self, limits: Limits = LIMITS) -> None:
        super().__init__(limits)
        self._output.append(settings.greeting(limits))
        self._longest = limits.frame_size << 8 | 0xFF
        self._preface = PREFACE
        self._tail = bytearray()
        """The beginning of a frame."""
        self._needed = frames.HEADER_SIZE
        """Bytes of it that are worth another look."""
        self._handlers = _FIRST
        self._block: Block | None = None
        self._windows_to_come = deque([limits.stream_window])
        """Sizes of streams' windows that we have sent and the peer has not acknowledged."""
        self._promised = LARGEST_STREAM
        """The last stream that our GOAWAY has named."""
        self._announced = self._concluded = self._failed = self._peer_leaves = False

    @property
    def greeted(self) -> bool:
        """Whether the peer's preface has come, its first SETTINGS included."""
        return self._handlers is not _FIRST

    @property
    def closed(self) -> bool:
        """Nothing more will come of it; what `take` gives is still to be written.

        That is so after a fault, and when a peer that said GOAWAY has no stream left.
        """
        return self._failed or (self._peer_leaves and not self._streams)

    @property
    def drained(self) -> bool:
        """Whether no stream is left after `go_away`, and none will come."""
        return self._failed or (self._concluded and not self._streams)

    def receive(self, data: bytes, now: float) -> list[Event]:
        """What these bytes, which came at this time, complete; time is monotonic, in seconds."""
        events: list[Event] = []
        self._events = events
        if self._failed:
            return events
        self._now = now
        try:
            if self._preface:
                data = self._without_preface(data)
            if self._tail:
                if len(self._tail) + len(data) < self._needed:
                    self._tail += data
                    return events
                data = b"".join((self._tail, data))
                self._tail.clear()
            self._parse(data)
        except ConnectionFault as fault:
            self._fail(fault)
        return events

    def lost(self) -> list[Event]:
        """The transport is gone: a Reset for each stream that is open."""
        self._events = []
        self._end_all(CANCEL)
        return self._events

    def go_away(self) -> None:
        """Has the peer open no more streams; those that are open, or under way, go on.

        First it is only told so. When it has had the time to hear it, which a PING finds out,
        or with the next call, the last stream is named, and later ones are refused.
        """
        if self._failed or self._concluded:
            return
        if self._announced:
            self._conclude()
        else:
            self._announced = True
            self._output += (frames.goaway(LARGEST_STREAM, NO_ERROR), frames.ping(_DRAINING))

    def set_stream_window(self, size: int) -> None:
        """Gives streams, open ones too, windows of this size once the peer has acknowledged it."""
        if not self._failed:
            self._output.append(frames.settings({settings.INITIAL_WINDOW_SIZE: size}))
            self._windows_to_come.append(size)

    def _resize_windows(self, size: int) -> None:
        more = size - self._stream_window
        if more:
            self._stream_window = size
            for state in self._streams.values():
                state.window += more
                state.receive_window += more
                # A peer that may send nothing now would never have us open the window otherwise.
                self._reopen(state, 0)

    def _conclude(self) -> None:
        self._concluded = True
        self._room = 0
        self._promised = self._last_stream
        self._output.append(frames.goaway(self._promised, NO_ERROR))

    def _without_preface(self, data: bytes) -> bytes:
        size = min(len(data), len(self._preface))
        if data[:size] != self._preface[:size]:
            raise ConnectionFault(PROTOCOL_ERROR, "not HTTP/2 with prior knowledge")
        self._preface = self._preface[size:]
        return data[size:]

    def _parse(self, data: bytes) -> None:
        """Handles each whole frame where it lies; what is left begins the next one."""
        at, end, needed = 0, len(data), frames.HEADER_SIZE
        while end - at >= 9:
            word, flags, stream = _unpack(data, at)
            if word > self._longest:
                raise ConnectionFault(FRAME_SIZE_ERROR, "frame too long")
            start = at + 9
            stop = start + (word >> 8)
            if stop > end:
                needed = stop - at
                break
            self._handlers[word & 0xFF](self, data, start, stop, flags, stream & LARGEST_STREAM)
            at = stop
        if at < end:
            self._tail += data[at:]
            self._needed = needed

    def _on_headers(self, data: bytes, start: int, stop: int, flags: int, stream: int) -> None:
        if flags & (PADDED | WITH_PRIORITY):
            start, stop = bare_headers(data, start, stop, flags)
        piece = data[start:stop]
        if flags & END_HEADERS:
            self._on_block(piece, flags, stream)
        elif not stream:
            raise ConnectionFault(PROTOCOL_ERROR, "HEADERS of the connection")
        else:
            self._block = Block(stream, flags, piece, self._limits)
            self._handlers = _WITHIN_BLOCK

    def _on_continuation(self, data: bytes, start: int, stop: int, flags: int, stream: int) -> None:
        block = self._block
        if block is None or stream != block.stream:
            raise ConnectionFault(PROTOCOL_ERROR, "CONTINUATION out of place")
        block.add(data[start:stop])
        if flags & END_HEADERS:
            self._block = None
            self._handlers = _BETWEEN
            self._on_block(block.whole(), block.flags, stream)

    def _on_priority(self, _: bytes, start: int, stop: int, __: int, stream: int) -> None:
        check_size(stop - start, 5)
        if not stream:
            raise ConnectionFault(PROTOCOL_ERROR, "PRIORITY of the connection")
        self._spend()

    def _on_settings(self, data: bytes, start: int, stop: int, flags: int, stream: int) -> None:
        if stream:
            raise ConnectionFault(PROTOCOL_ERROR, "SETTINGS of a stream")
        if flags & ACK:
            check_size(stop - start, 0)
            if self._handlers is _FIRST:
                raise ConnectionFault(PROTOCOL_ERROR, "no SETTINGS at first")
            self._spend()
            self._decoder.acknowledged()
            if self._windows_to_come:
                self._resize_windows(self._windows_to_come.popleft())
            return
        self._handlers = _BETWEEN
        self._spend()
        theirs = settings.read(data[start:stop])
        # Before any data that they let go, which the peer would not expect.
        self._output.append(frames.SETTINGS_ACK)
        self._frame_limit = min(
            theirs.get(settings.MAX_FRAME_SIZE, self._frame_limit), frames.FRAME_LIMIT
        )
        if settings.INITIAL_WINDOW_SIZE in theirs:
            self._move_windows(theirs[settings.INITIAL_WINDOW_SIZE])

    def _move_windows(self, initial: int) -> None:
        """All streams' windows change with the initial one, and may shrink below zero."""
        more = initial - self._initial_send_window
        if not more:
            return
        self._initial_send_window = initial
        self._spend(len(self._streams) // 100)
        for state in self._streams.values():
            state.send_window += more
            if state.send_window > LARGEST_WINDOW:
                raise ConnectionFault(FLOW_CONTROL_ERROR, "a stream's window too large")
            if state.queue:
                self._line_up(state)
        self._serve()

    def _on_ping(self, data: bytes, start: int, stop: int, flags: int, stream: int) -> None:
        check_size(stop - start, 8)
        if stream:
            raise ConnectionFault(PROTOCOL_ERROR, "PING of a stream")
        self._spend()
        payload = data[start:stop]
        if not flags & ACK:
            self._output.append(frames.ping(payload, ACK))
        elif payload == _DRAINING and self._announced and not self._concluded:
            self._conclude()

    def _on_goaway(self, _: bytes, start: int, stop: int, __: int, stream: int) -> None:
        if stream:
            raise ConnectionFault(PROTOCOL_ERROR, "GOAWAY of a stream")
        if stop - start < 8:
            raise ConnectionFault(FRAME_SIZE_ERROR, "GOAWAY too short")
        self._spend()
        self._peer_leaves = True
        self._room = 0

    def _on_window_update(self, data: bytes, start: int, stop: int, _: int, stream: int) -> None:
        check_size(stop - start, 4)
        increment = INTEGER.unpack_from(data, start)[0] & LARGEST_WINDOW
        if stream:
            self._on_stream_window(stream, increment)
            return
        if not increment:
            raise ConnectionFault(PROTOCOL_ERROR, "WINDOW_UPDATE by nothing")
        self._send_window += increment
        if self._send_window > LARGEST_WINDOW:
            raise ConnectionFault(FLOW_CONTROL_ERROR, "the connection's window too large")
        if not self._waiting or increment < WORTHWHILE:
            self._spend()
        self._serve()

    def _on_unknown(self, *_: object) -> None:
        """Frames of types that we do not know are ignored (RFC 9113, section 5.5)."""
        self._spend()

    def _on_wrong(self, *_: object) -> None:
        raise ConnectionFault(PROTOCOL_ERROR, "frame out of place")

    def _fail(self, fault: ConnectionFault) -> None:
        last = min(self._last_stream, self._promised)
        self._output.append(frames.goaway(last, fault.code, fault.why.encode()))
        self._end_all(fault.code)

    def _end_all(self, code: int) -> None:
        self._failed = True
        for state in self._streams.values():
            if not state.ending:
                self._events.append(Reset(state.id, code))
        for store in (self._streams, self._waiting, self._recent, self._tail, self._kept):
            store.clear()


def _table(handlers: dict[int, Handler], others: Handler) -> tuple[Handler, ...]:
    return tuple(handlers.get(kind, others) for kind in range(256))


_BETWEEN = _table(
    {
        frames.DATA: Http2Connection._on_data,
        frames.HEADERS: Http2Connection._on_headers,
        frames.PRIORITY: Http2Connection._on_priority,
        frames.RST_STREAM: Http2Connection._on_rst_stream,
        frames.SETTINGS: Http2Connection._on_settings,
        frames.PUSH_PROMISE: Http2Connection._on_wrong,
        frames.PING: Http2Connection._on_ping,
        frames.GOAWAY: Http2Connection._on_goaway,
        frames.WINDOW_UPDATE: Http2Connection._on_window_update,
        frames.CONTINUATION: Http2Connection._on_wrong,
    },
    others=Http2Connection._on_unknown,
)
_FIRST = _table({frames.SETTINGS: Http2Connection._on_settings}, others=Http2Connection._on_wrong)
_WITHIN_BLOCK = _table(
    {frames.CONTINUATION: Http2Connection._on_continuation}, others=Http2Connection._on_wrong
)
