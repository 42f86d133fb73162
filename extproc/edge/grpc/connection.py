"""The gRPC calls of one peer over one HTTP/2 connection: bytes in, bytes out.

Messages are handled as they arrive, in the same turn of the event loop. Only two things can pile
up: responses that the peer does not read, and messages that are incomplete. While many bytes of
responses wait on a stream, the peer gets no credit to send more on it. The memory of incomplete
messages is limited by `UnfinishedMessages`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from google.protobuf.message import DecodeError

from extproc.edge.grpc.calls import Call, Method
from extproc.edge.grpc.messages import CallError, Status, framed
from extproc.edge.grpc.responses import NOT_GRPC, NOT_POST, START, trailers
from extproc.edge.grpc.unfinished import MOST_BYTES, SERIAL_BYTES, UnfinishedMessages
from extproc.edge.http2 import Data, Ended, Http2Connection, Opened, Reset

log = logging.getLogger("extproc.grpc")

_UNREAD = 262_144
"""Bytes of responses that may wait on a stream while the peer may still send on it."""

_CONTENT_TYPE = b"application/grpc"
_CONTENT_TYPES = (b"application/grpc+", b"application/grpc;")


class GrpcConnection:
    """The calls of one connection: each stream is a call, and its handler gets the messages.

    `flush` is called when there are bytes to `take` although none were received. `unfinished` and
    `most_unfinished` are limits of `UnfinishedMessages`, in bytes.
    """

    def __init__(
        self,
        methods: Mapping[bytes, Method],
        flush: Callable[[], None],
        unfinished: int = SERIAL_BYTES,
        most_unfinished: int = MOST_BYTES,
    ) -> None:
        self._methods = methods
        self._flush = flush
        self._http2 = Http2Connection()
        self._sender = self._http2.sender
        self._windows = self._http2.windows
        self._calls: dict[int, Call] = {}
        self._stalled: dict[int, Call] = {}
        """Calls whose responses the peer does not read."""
        self._unfinished = UnfinishedMessages(self._http2, unfinished, most_unfinished)

    @property
    def greeted(self) -> bool:
        """True once the peer has sent its preface and its first SETTINGS."""
        return self._http2.greeted

    @property
    def calls(self) -> int:
        """Number of calls that are not over."""
        return len(self._calls)

    @property
    def over(self) -> bool:
        """True if neither side will send any more."""
        return self._http2.closed or self._http2.drained

    def receive(self, data: bytes, now: float) -> None:
        """Handle bytes of the peer. `now` is monotonic, in seconds. Never raises."""
        for event in self._http2.receive(data, now):
            _STEPS[type(event)](self, event)
        if self._stalled:
            for call in list(self._stalled.values()):
                self._admit(call)

    def take(self) -> bytes:
        """Return the bytes to send to the peer now."""
        return self._http2.take()

    def drain(self) -> None:
        """Accept no new calls. End those that do not end with the peer's last message."""
        self._http2.go_away()
        for call in [call for call in self._calls.values() if not call.method.ends_with_peer]:
            self._end(call, Status.UNAVAILABLE, "shutting down")

    def lost(self) -> None:
        """End all calls, after the transport has closed."""
        for event in self._http2.lost():
            _STEPS[type(event)](self, event)
        # Break the reference cycle through the owner, so that both are freed at once.
        self._flush = _do_nothing

    def _on_opened(self, event: Opened) -> None:
        kind = event.headers.get(b"content-type", b"")
        if kind != _CONTENT_TYPE and not kind.startswith(_CONTENT_TYPES):
            self._sender.end(event.stream, NOT_GRPC)
            return
        if event.headers[b":method"] != b"POST":
            self._sender.end(event.stream, NOT_POST)
            return
        try:
            method = self._methods.get(event.headers.get(b":path", b""))
            if method is None:
                raise CallError(Status.UNIMPLEMENTED, "no such method")
            handler = method.handler(partial(self._push, event.stream), event.headers)
        except CallError as error:
            self._sender.end(event.stream, trailers(error.status, str(error), answered=False))
            return
        self._calls[event.stream] = Call(event.stream, method, handler)

    def _push(self, stream: int, messages: Sequence[bytes]) -> None:
        """Send messages although none was received."""
        call = self._calls.get(stream)
        if call is not None:
            self._send(call, messages)
            if call.peer_ended and not call.handler.owes_replies:
                self._end(call, Status.OK)
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
            log.exception("call failed")
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
        elif call.handler.owes_replies:
            call.peer_ended = True
        elif call.method.ends_with_peer:
            self._end(call, Status.OK)

    def _on_reset(self, event: Reset) -> None:
        call = self._calls.get(event.stream)
        if call is not None:
            self._close(call)

    def _send(self, call: Call, messages: Sequence[bytes]) -> None:
        if not messages:
            return
        if not call.answered:
            call.answered = True
            self._sender.start_response(call.stream, START)
        # One DATA frame for all of them: it costs each side less than several frames.
        data = framed(messages[0]) if len(messages) == 1 else b"".join(map(framed, messages))
        self._sender.send(call.stream, data)

    def _admit(self, call: Call) -> None:
        """Give the peer credit for what it has sent, unless it leaves many responses unread."""
        if self._sender.queued(call.stream) > _UNREAD:
            self._stalled[call.stream] = call
            return
        self._stalled.pop(call.stream, None)
        size = call.withheld
        call.withheld = 0
        if call.unfinished:
            self._unfinished.admit(call, size)
        else:
            self._windows.consumed(call.stream, size)

    def _account(self, call: Call, unfinished: int) -> None:
        """Record the bytes of an incomplete message, and end calls while there are too many."""
        self._unfinished.account(call, unfinished)
        while (last := self._unfinished.excess()) is not None:
            self._end(last, Status.RESOURCE_EXHAUSTED, "too many incomplete messages at once")

    def _end(self, call: Call, status: Status, message: str = "") -> None:
        self._close(call)
        self._sender.end(call.stream, trailers(status, message, answered=call.answered))

    def _close(self, call: Call) -> None:
        del self._calls[call.stream]
        self._stalled.pop(call.stream, None)
        if call.unfinished:
            self._account(call, 0)
        try:
            call.handler.close()
        except Exception:
            log.exception("end of call failed")


def _do_nothing() -> None:
    """Replace `flush` when the connection is lost."""


_STEPS: dict[type, Callable[[GrpcConnection, Any], None]] = {
    Opened: GrpcConnection._on_opened,
    Data: GrpcConnection._on_data,
    Ended: GrpcConnection._on_ended,
    Reset: GrpcConnection._on_reset,
}
