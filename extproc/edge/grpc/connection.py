"""One peer's gRPC calls, over one HTTP/2 connection: bytes in, bytes out.

A call is answered as its messages come, in the same turn, so only two things can pile up. One is
answers that the peer does not read: while many of those wait on a stream the peer is not told that
it may send more of it. The other is messages that are not complete. From `_MUCH` bytes of them on,
the peer is asked to keep to small windows. Beyond `_UNFINISHED`, only the streams whose messages
began first may send more than their windows, so one message after the other becomes complete; the
connection's window stays open, so those streams can always proceed. Beyond `_MOST_UNFINISHED`,
which takes some five hundred streams, the last one to begin is refused.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any, NamedTuple, Protocol
from urllib.parse import quote

from google.protobuf.message import DecodeError

from extproc.edge.grpc.messages import CallError, Messages, Status, framed
from extproc.edge.http2 import LIMITS, Data, Ended, Http2Connection, Opened, Reset
from extproc.edge.http2 import encode_headers as block

log = logging.getLogger("extproc.grpc")

_UNREAD = 262_144
"""Bytes of answers that may wait on a stream while the peer may still send on it."""

_UNFINISHED = 32 << 20
"""Bytes of incomplete messages beyond which they are completed one after the other."""

_MUCH = 24 << 20
"""Bytes of incomplete messages beyond which streams get narrow windows."""

_LITTLE = 1 << 20
"""Bytes of incomplete messages below which streams get their usual windows again."""

_NARROW = 32_768
"""Bytes of a narrow window."""

_FIRST = 2
"""Calls that may always proceed: with one alone, its peer and we would wait for each other."""

_MOST_UNFINISHED = 72 << 20
"""Bytes of incomplete messages, at the most."""

_CONTENT_TYPE = b"application/grpc"
_CONTENT_TYPES = (b"application/grpc+", b"application/grpc;")

_HEADERS = ((b":status", b"200"), (b"content-type", b"application/grpc"))
_BEGIN = block(_HEADERS)
_NO_GRPC = block([(b":status", b"415")])
_NO_POST = block([(b":status", b"405"), (b"allow", b"POST")])


class Handler(Protocol):
    """Answers one call."""

    def receive(self, message: bytes) -> Sequence[bytes]:
        """The answers to a message. Raises CallError, or DecodeError for a garbled one."""

    def close(self) -> None:
        """The call is over, however that came. It is called once."""


Send = Callable[[bytes], None]
"""Sends a message that answers none."""


class Method(NamedTuple):
    """What a path of HTTP/2 calls."""

    handler: Callable[[Send], Handler]
    """Opens a call. Raises CallError if there can be none now."""
    ends_with_peer: bool = True
    """Whether the call is over when the peer has sent its last message."""


class _Call:
    __slots__ = ("answered", "handler", "messages", "method", "stream", "unfinished", "withheld")

    def __init__(self, stream: int, method: Method, handler: Handler) -> None:
        self.stream = stream
        self.method = method
        self.handler = handler
        self.messages = Messages()
        self.answered = False
        self.unfinished = 0
        """Bytes of a message that is not complete, as far as they are accounted for."""
        self.withheld = 0
        """Bytes that the peer may send in place of those that came, and does not know of yet."""


class GrpcConnection:
    """`flush` is called when there is something to `take` although nothing was received.

    `unfinished` and `most_unfinished` are bytes of incomplete messages; see above.
    """

    def __init__(
        self,
        methods: Mapping[bytes, Method],
        flush: Callable[[], None],
        unfinished: int = _UNFINISHED,
        most_unfinished: int = _MOST_UNFINISHED,
    ) -> None:
        self._methods = methods
        self._flush = flush
        self._enough = unfinished
        self._most = most_unfinished
        self._http2 = Http2Connection()
        self._calls: dict[int, _Call] = {}
        self._stalled: dict[int, _Call] = {}
        self._unfinished: dict[int, _Call] = {}
        """Calls with an incomplete message, in the order in which these began."""
        self._unfinished_bytes = 0
        self._narrow = False

    @property
    def greeted(self) -> bool:
        """Whether the peer has sent its preface and its first SETTINGS."""
        return self._http2.greeted

    @property
    def calls(self) -> int:
        """Calls that are not over."""
        return len(self._calls)

    @property
    def over(self) -> bool:
        """Whether nothing more is to come from either side."""
        return self._http2.closed or self._http2.drained

    def receive(self, data: bytes, now: float) -> None:
        """Answers what has come; `now` in seconds of any clock. Never raises."""
        for event in self._http2.receive(data, now):
            _STEPS[type(event)](self, event)
        if self._stalled:
            for call in list(self._stalled.values()):
                self._admit(call)

    def take(self) -> bytes:
        """What is to be sent to the peer now."""
        return self._http2.take()

    def drain(self) -> None:
        """No new calls; those that wait for no message of the peer's are over now."""
        self._http2.go_away()
        for call in [call for call in self._calls.values() if not call.method.ends_with_peer]:
            self._end(call, Status.UNAVAILABLE, "shutting down")

    def lost(self) -> None:
        """The peer is gone, and all its calls are over."""
        for event in self._http2.lost():
            _STEPS[type(event)](self, event)
        # It leads back to the owner: without it, both are freed when they are dropped.
        self._flush = _nothing

    def _on_opened(self, event: Opened) -> None:
        kind = event.headers.get(b"content-type", b"")
        if kind != _CONTENT_TYPE and not kind.startswith(_CONTENT_TYPES):
            self._http2.end(event.stream, _NO_GRPC)
            return
        if event.headers[b":method"] != b"POST":
            self._http2.end(event.stream, _NO_POST)
            return
        method = self._methods.get(event.headers.get(b":path", b""))
        if method is None:
            self._http2.end(event.stream, _ending(Status.UNIMPLEMENTED, "no such method", False))
            return
        try:
            handler = method.handler(partial(self._say, event.stream))
        except CallError as error:
            self._http2.end(event.stream, _ending(error.status, str(error), False))
            return
        self._calls[event.stream] = _Call(event.stream, method, handler)

    def _say(self, stream: int, message: bytes) -> None:
        """Sends a message that answers none."""
        call = self._calls.get(stream)
        if call is not None:
            self._send(call, (message,))
            self._flush()

    def _on_data(self, event: Data) -> None:
        call = self._calls.get(event.stream)
        if call is None:
            return
        try:
            for message in call.messages.feed(event.data):
                self._send(call, call.handler.receive(message))
        except CallError as error:
            self._end(call, error.status, str(error))
        except DecodeError:
            self._end(call, Status.INVALID_ARGUMENT, "not a message of this method")
        except Exception:
            log.exception("a call broke off")
            self._end(call, Status.INTERNAL, "internal error")
        else:
            call.withheld += len(event.data)
            if call.unfinished or call.messages.unfinished:
                self._account(call, call.messages.unfinished)
            self._admit(call)

    def _on_ended(self, event: Ended) -> None:
        call = self._calls.get(event.stream)
        if call is None:
            return
        if call.unfinished:
            self._end(call, Status.INTERNAL, "the last message is cut off")
        elif call.method.ends_with_peer:
            self._end(call, Status.OK)

    def _on_reset(self, event: Reset) -> None:
        call = self._calls.get(event.stream)
        if call is not None:
            self._close(call)

    def _send(self, call: _Call, messages: Sequence[bytes]) -> None:
        if not messages:
            return
        if not call.answered:
            call.answered = True
            self._http2.start_response(call.stream, _BEGIN)
        # In one frame of HTTP/2, which costs each side less than two.
        data = framed(messages[0]) if len(messages) == 1 else b"".join(map(framed, messages))
        self._http2.send(call.stream, data)

    def _admit(self, call: _Call) -> None:
        """Lets the peer send as much again as it has, unless it leaves answers unread."""
        if self._http2.queued(call.stream) > _UNREAD:
            self._stalled[call.stream] = call
            return
        self._stalled.pop(call.stream, None)
        size = call.withheld
        call.withheld = 0
        if not call.unfinished:
            self._http2.consumed(call.stream, size)
            return
        self._http2.keep(call.stream, size)
        first = self._is_first(call)
        if first:
            self._http2.widen(call.stream)
        if first or self._unfinished_bytes <= self._enough:
            self._http2.let_go(call.stream)

    def _account(self, call: _Call, unfinished: int) -> None:
        """Notes how many bytes of a call wait for the rest of their message."""
        change = unfinished - call.unfinished
        call.unfinished = unfinished
        self._unfinished_bytes += change
        if unfinished:
            self._unfinished[call.stream] = call
        else:
            self._unfinished.pop(call.stream, None)
            self._http2.let_go(call.stream)
        if change < 0:
            self._resume()
        self._set_windows()
        while self._unfinished_bytes > self._most:
            last = next(reversed(self._unfinished.values()))
            self._end(last, Status.RESOURCE_EXHAUSTED, "too many incomplete messages at once")

    def _set_windows(self) -> None:
        """Narrows the windows of all streams under pressure, and widens them after it."""
        if self._narrow and self._unfinished_bytes < _LITTLE:
            self._narrow = False
            self._http2.set_stream_window(LIMITS.stream_window)
        elif not self._narrow and self._unfinished_bytes > _MUCH:
            self._narrow = True
            self._http2.set_stream_window(_NARROW)

    def _is_first(self, call: _Call) -> bool:
        """Whether its incomplete message is one of those that began first."""
        return any(one is call for one in islice(self._unfinished.values(), _FIRST))

    def _resume(self) -> None:
        """Lets those send whose messages began first, and more if there is room."""
        room = self._enough - self._unfinished_bytes
        for number, call in enumerate(self._unfinished.values()):
            if number >= _FIRST and room <= 0:
                return
            self._http2.let_go(call.stream)
            room -= LIMITS.stream_window

    def _end(self, call: _Call, status: Status, message: str = "") -> None:
        self._close(call)
        if status is Status.OK:
            trailers = _OK if call.answered else _OK_ALONE
        else:
            trailers = _ending(status, message, call.answered)
        self._http2.end(call.stream, trailers)

    def _close(self, call: _Call) -> None:
        del self._calls[call.stream]
        self._stalled.pop(call.stream, None)
        if call.unfinished:
            self._account(call, 0)
        try:
            call.handler.close()
        except Exception:
            log.exception("the end of a call broke off")


def _nothing() -> None:
    """What is left to do for a connection that is lost."""


def _ending(status: Status, message: str, answered: bool) -> bytes:
    """The trailers; of a call without an answer they are its headers, too."""
    trailers = [(b"grpc-status", str(int(status)).encode())]
    if message:
        trailers.append((b"grpc-message", quote(message, safe=" ,:;/'").encode()))
    return block([*(() if answered else _HEADERS), *trailers])


_OK = _ending(Status.OK, "", True)
_OK_ALONE = _ending(Status.OK, "", False)

_STEPS: dict[type, Callable[[GrpcConnection, Any], None]] = {
    Opened: GrpcConnection._on_opened,
    Data: GrpcConnection._on_data,
    Ended: GrpcConnection._on_ended,
    Reset: GrpcConnection._on_reset,
}
