"""The server's side of one HTTP/2 connection: bytes in, events and bytes out."""

from __future__ import annotations

from typing import Final

from extproc.edge.http2 import frames, settings
from extproc.edge.http2.connection_window import ConnectionWindow
from extproc.edge.http2.errors import (
    CANCEL,
    FRAME_SIZE_ERROR,
    PROTOCOL_ERROR,
    ConnectionFault,
)
from extproc.edge.http2.events import Event
from extproc.edge.http2.frame_buffer import FrameBuffer
from extproc.edge.http2.frames import (
    ACK,
    CONTINUATION,
    DATA,
    GOAWAY,
    HEADER_SIZE,
    HEADERS,
    LARGEST_STREAM,
    LARGEST_WINDOW,
    PING,
    PRIORITY,
    PUSH_PROMISE,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
)
from extproc.edge.http2.limits import LIMITS, Budget, Limits
from extproc.edge.http2.payload import check_size
from extproc.edge.http2.receive_windows import ReceiveWindows
from extproc.edge.http2.receiver import INTEGER, Receiver
from extproc.edge.http2.sender import Sender
from extproc.edge.http2.shutdown import Shutdown
from extproc.edge.http2.streams import StreamTable

_unpack = frames.HEADER.unpack_from

_ANY: Final = -1


class Http2Connection:
    """One connection, from its first byte to its end. The package's docstring explains it."""

    def __init__(self, limits: Limits = LIMITS) -> None:
        self._output: list[bytes | memoryview] = [settings.greeting(limits)]
        self._budget = Budget(limits.budget, limits.budget_per_second)
        window = ConnectionWindow(limits.connection_window, self._output)
        self.streams = StreamTable(limits, window)
        self.windows = ReceiveWindows(limits, self.streams, window, self._output)
        self.sender = Sender(self.streams, self._budget, self._output)
        self._receiver = Receiver(
            limits, self.streams, self.windows, self.sender, self._budget, self._output
        )
        self._shutdown = Shutdown(self.streams, self._output)
        self._buffer = FrameBuffer()
        self._longest = limits.frame_size << 8 | 0xFF
        """The first word of the header of the longest frame."""
        self._only = SETTINGS
        """The only type of frame that may come now, or _ANY."""
        self._failed = False

    @property
    def greeted(self) -> bool:
        """True once the peer has sent its preface and its first SETTINGS."""
        return self._only != SETTINGS

    @property
    def closed(self) -> bool:
        """True if the connection is over, except for the bytes that `take` still returns.

        That is so after a fault, and when a peer that sent GOAWAY has no open stream.
        """
        return self._failed or (self._shutdown.peer_leaves and not self.streams.open)

    @property
    def drained(self) -> bool:
        """True if `go_away` was called, no stream is open, and none can be opened."""
        return self._failed or (self._shutdown.concluded and not self.streams.open)

    def take(self) -> bytes:
        """Return the bytes to write now. The caller must write all of them, in order."""
        output = self._output
        if not output:
            return b""
        taken = b"".join(output)
        output.clear()
        return taken

    def receive(self, data: bytes, now: float) -> list[Event]:
        """Return the events that these bytes complete. `now` is monotonic, in seconds."""
        events: list[Event] = []
        if self._failed:
            return events
        self._receiver.events = events
        self._budget.now = now
        try:
            self._parse(self._buffer.feed(data))
        except ConnectionFault as fault:
            self._fail(fault)
        return events

    def lost(self) -> list[Event]:
        """Return a Reset for each open stream, after the transport has closed."""
        events: list[Event] = []
        self._receiver.events = events
        self._end_all(CANCEL)
        return events

    def go_away(self) -> None:
        """Ask the peer to open no more streams. Open ones continue.

        When the peer has acknowledged that, or with the next call, the last stream is named, and
        later ones are refused.
        """
        if not self._failed:
            self._shutdown.proceed()

    def set_stream_window(self, size: int) -> None:
        """Give all streams, open ones too, windows of this size once the peer acknowledges it."""
        if not self._failed:
            self.windows.set_initial(size)

    def _parse(self, data: bytes) -> None:
        """Handle each whole frame in place, and keep the beginning of the next one."""
        at, end, needed = 0, len(data), HEADER_SIZE
        while end - at >= 9:
            word, flags, stream_id = _unpack(data, at)
            if word > self._longest:
                raise ConnectionFault(FRAME_SIZE_ERROR, "frame too long")
            start = at + 9
            stop = start + (word >> 8)
            if stop > end:
                needed = stop - at
                break
            self._on_frame(word & 0xFF, data, start, stop, flags, stream_id & LARGEST_STREAM)
            at = stop
        if at < end:
            self._buffer.keep(data[at:], needed)

    def _on_frame(
        self, kind: int, data: bytes, start: int, stop: int, flags: int, stream_id: int
    ) -> None:
        if self._only != _ANY and kind != self._only:
            raise ConnectionFault(PROTOCOL_ERROR, "frame out of place")
        receiver = self._receiver
        if kind == DATA:
            receiver.on_data(data, start, stop, flags, stream_id)
        elif kind == HEADERS:
            receiver.on_headers(data, start, stop, flags, stream_id)
            if receiver.block is not None:
                self._only = CONTINUATION
        elif kind == WINDOW_UPDATE:
            self._on_window_update(data, start, stop, stream_id)
        elif kind == RST_STREAM:
            receiver.on_rst_stream(data, start, stop, stream_id)
        elif kind == CONTINUATION:
            receiver.on_continuation(data, start, stop, flags, stream_id)
            if receiver.block is None:
                self._only = _ANY
        elif kind == PRIORITY:
            self._on_priority(stop - start, stream_id)
        else:
            self._on_connection_frame(kind, data[start:stop], flags, stream_id)

    def _on_connection_frame(self, kind: int, payload: bytes, flags: int, stream_id: int) -> None:
        if stream_id and kind in (SETTINGS, PING, GOAWAY):
            raise ConnectionFault(PROTOCOL_ERROR, "frame of the connection on a stream")
        if kind == SETTINGS:
            self._on_settings(payload, flags)
        elif kind == PING:
            self._on_ping(payload, flags)
        elif kind == GOAWAY:
            self._on_goaway(payload)
        elif kind == PUSH_PROMISE:
            raise ConnectionFault(PROTOCOL_ERROR, "PUSH_PROMISE of a client")
        else:
            # Frames of unknown types are ignored (RFC 9113, section 5.5).
            self._budget.spend()

    def _on_window_update(self, data: bytes, start: int, stop: int, stream_id: int) -> None:
        check_size(stop - start, 4)
        increment = INTEGER.unpack_from(data, start)[0] & LARGEST_WINDOW
        if stream_id:
            self._receiver.on_window_update(stream_id, increment)
        else:
            self.sender.open_window(increment)

    def _on_priority(self, size: int, stream_id: int) -> None:
        check_size(size, 5)
        if not stream_id:
            raise ConnectionFault(PROTOCOL_ERROR, "PRIORITY on stream 0")
        self._budget.spend()

    def _on_settings(self, payload: bytes, flags: int) -> None:
        if flags & ACK:
            check_size(len(payload), 0)
            if self._only == SETTINGS:
                raise ConnectionFault(PROTOCOL_ERROR, "SETTINGS must come first")
            self._budget.spend()
            self._receiver.settings_acknowledged()
            self.windows.acknowledged()
            return
        self._only = _ANY
        self._budget.spend()
        peer = settings.read(payload)
        # Acknowledge before any data that the new settings allow: the peer would not expect it.
        self._output.append(frames.SETTINGS_ACK)
        self.sender.apply_settings(peer)

    def _on_ping(self, payload: bytes, flags: int) -> None:
        check_size(len(payload), 8)
        self._budget.spend()
        if not flags & ACK:
            self._output.append(frames.ping(payload, ACK))
        else:
            self._shutdown.ping_acknowledged(payload)

    def _on_goaway(self, payload: bytes) -> None:
        if len(payload) < 8:
            raise ConnectionFault(FRAME_SIZE_ERROR, "GOAWAY too short")
        self._budget.spend()
        self._shutdown.peer_said_goaway()

    def _fail(self, fault: ConnectionFault) -> None:
        last = self._shutdown.last_stream
        self._output.append(frames.goaway(last, fault.code, fault.why.encode()))
        self._end_all(fault.code)

    def _end_all(self, code: int) -> None:
        self._failed = True
        self._receiver.end_all(code)
        self._buffer.clear()
