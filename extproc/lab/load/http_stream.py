"""An HTTP/1.1 client connection, made for many streams of small chunks.

General clients need queues, tasks and timers for each response, which take most of their time.
Here, each read goes from the socket into a buffer that all connections share, then through the
parser to the current exchange.
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

    Connections can share `buffer`: its content is processed before the event loop reads again.
    `free` is called when the connection can send the next request.
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
        """Time of the last received byte or sent request."""

    def _reset(self) -> None:
        self._event_stream = False
        self._framed = False
        self._headed = False
        self._endpoint = ""

    @property
    def usable(self) -> bool:
        """True if the connection can send a request."""
        return self._transport is not None and not self._transport.is_closing()

    def send(self, request: bytes, exchange: Exchange) -> None:
        """Send a request and report its events to its exchange."""
        assert self._transport is not None
        assert self._exchange is None, "one at a time"
        if not self.usable:
            # The connection is already closed, so no callback would end the exchange.
            exchange.fail(of_error(None))
            return
        self._exchange = exchange
        self._reset()
        self.heard = monotonic()
        self._transport.write(request)

    def abort(self, failure: Failure | None = None) -> None:
        """Close the connection at once; with `failure`, fail the current request."""
        exchange, self._exchange = self._exchange, None
        if exchange is not None and failure is not None:
            exchange.fail(failure)
        if self._transport is not None:
            self._transport.abort()

    # Callbacks of the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # The transports of some event loops are not subclasses of asyncio.Transport.
        self._transport = cast("asyncio.Transport", transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        self.heard = monotonic()
        if self._exchange is None:
            self.abort()  # data without a request
            return
        self._exchange.touched = True
        try:
            self._parser.feed_data(self._buffer[:nbytes])
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self.abort(_parser_failure(error))

    def eof_received(self) -> None:
        """Let the transport close the connection."""

    def connection_lost(self, exc: Exception | None) -> None:
        exchange, self._exchange = self._exchange, None
        if exchange is None:
            return
        if exc is None and self._headed and not self._framed:
            exchange.end(monotonic())
        else:
            exchange.fail(of_error(exc))

    # Callbacks of the parser.

    def on_message_begin(self) -> None:
        if self._exchange is None:
            self.abort()  # a second response to one request

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
            self._reset()  # end of a 1xx response
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


def _parser_failure(error: Exception) -> Failure:
    """Return the failure for an error of the parser, or of a callback that the parser called."""
    cause = error.__context__ if isinstance(error.__context__, ValueError) else error
    return Failure("not HTTP", one_line(str(cause)) or type(cause).__name__)
