"""HTTP/1.1 from the client's side on one connection, made for many streams of small chunks.

A general client spends most of its time on generality: queues, tasks and timers for each
response. Here a read goes from the socket into one buffer that all connections share, through
the parser, straight to the exchange under way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import monotonic
from typing import cast

import httptools

from extproc.lab.load.exchange import Exchange
from extproc.lab.load.failure import Failure, of_error, one_line

BUFFER_BYTES = 64 * 1024


class Connection(asyncio.BufferedProtocol):
    """One connection, with one request at a time.

    `buffer` may be shared: what is read into it is used up before the loop goes on.
    `free` is called when the next request may be sent.
    """

    __slots__ = (
        "_buffer", "_endpoint", "_endpoint_headers", "_event_stream", "_exchange", "_framed",
        "_free", "_headed", "_parser", "_transport", "heard",
    )  # fmt: skip

    def __init__(
        self,
        buffer: memoryview,
        endpoint_headers: frozenset[bytes],
        free: Callable[[Connection], None],
    ) -> None:
        self._buffer = buffer
        self._endpoint_headers = endpoint_headers
        self._free = free
        self._parser = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None
        self._exchange: Exchange | None = None
        self._reset()
        self.heard = 0.0
        """When the server was last heard of, or asked."""

    def _reset(self) -> None:
        self._event_stream = False
        self._framed = False
        self._headed = False
        self._endpoint = ""

    @property
    def usable(self) -> bool:
        """Whether a request can be sent on it."""
        return self._transport is not None and not self._transport.is_closing()

    def send(self, request: bytes, exchange: Exchange) -> None:
        """Sends a request; its exchange will be told what comes of it."""
        assert self._transport is not None
        assert self._exchange is None, "one at a time"
        if not self.usable:
            # It was closed as soon as it was made; nobody would tell the exchange any more.
            exchange.fail(of_error(None))
            return
        self._exchange = exchange
        self._reset()
        self.heard = monotonic()
        self._transport.write(request)

    def abort(self, failure: Failure | None = None) -> None:
        """Closes it at once; the request under way fails, if it is said why."""
        exchange, self._exchange = self._exchange, None
        if exchange is not None and failure is not None:
            exchange.fail(failure)
        if self._transport is not None:
            self._transport.abort()

    # What the loop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Not every loop's transports say that they are.
        self._transport = cast("asyncio.Transport", transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        self.heard = monotonic()
        if self._exchange is None:
            self.abort()  # nobody asked
            return
        self._exchange.touched = True
        try:
            self._parser.feed_data(self._buffer[:nbytes])
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self.abort(_said_by(error))

    def eof_received(self) -> None:
        """Closing follows."""

    def connection_lost(self, exc: Exception | None) -> None:
        exchange, self._exchange = self._exchange, None
        if exchange is None:
            return
        if exc is None and self._headed and not self._framed:
            exchange.end(monotonic())
        else:
            exchange.fail(of_error(exc))

    # What the parser calls.

    def on_message_begin(self) -> None:
        if self._exchange is None:
            self.abort()  # a second answer to one request

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        if name == b"content-type":
            self._event_stream = value.lower().startswith(b"text/event-stream")
        elif name in (b"content-length", b"transfer-encoding"):
            self._framed = True
        elif name in self._endpoint_headers:
            self._endpoint = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if self._exchange is not None and status >= 200:
            self._headed = True
            self._exchange.head(status, self._event_stream, self._endpoint)

    def on_body(self, data: bytes) -> None:
        if self._exchange is not None:
            self._exchange.body(data, self.heard)

    def on_message_complete(self) -> None:
        if not self._headed:
            self._reset()  # of a 1xx that goes before the answer
            return
        exchange, self._exchange = self._exchange, None
        if exchange is None:
            return
        exchange.end(self.heard)
        self._headed = False
        assert self._transport is not None
        if self._parser.should_keep_alive() and not self._transport.get_write_buffer_size():
            self._free(self)
        else:
            self._transport.close()


def _said_by(error: Exception) -> Failure:
    """The parser's complaint, or that of a callback of ours that it called."""
    cause = error.__context__ if isinstance(error.__context__, ValueError) else error
    return Failure("not HTTP", one_line(str(cause)) or type(cause).__name__)
