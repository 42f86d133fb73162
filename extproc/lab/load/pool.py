"""The connection pool of one process, with keep-alive, limited connects and timeouts."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from functools import partial
from itertools import cycle
from time import monotonic

from extproc.lab.load.exchange import LOST, Exchange
from extproc.lab.load.failure import Failure, of_error
from extproc.lab.load.http_stream import BUFFER_BYTES, Connection
from extproc.lab.load.shares import RequestOptions

_CONNECTING = 64
"""Most connections that are being opened at a time. A thousand at once overflow the accept queue of
a server, and delay the processing of responses."""

_SWEEPS = 10
"""Checks per timeout interval. A periodic check costs less than a timer for each request."""


class Pool:
    """The connections to one target."""

    def __init__(self, options: RequestOptions) -> None:
        self._target = target = options.target
        self._timeout = options.timeout
        self._keep_alive = options.keep_alive
        self._head = target.head(options.style.api)
        self._tls = tls_context() if target.tls else None
        self._addresses = cycle(target.addresses)
        self._buffer = memoryview(bytearray(BUFFER_BYTES))
        self._names = frozenset(name.encode() for name in target.endpoint_headers)
        self._idle: list[Connection] = []
        self._busy: set[Connection] = set()
        self._connecting = asyncio.Semaphore(_CONNECTING)
        self.retried = 0
        """Requests that were sent again because the server had closed an idle connection."""
        self.connections = 0
        """Connections opened so far."""

    async def ask(self, make_body: Callable[[], bytes], exchange: Exchange) -> None:
        """Send a request and wait for its end.

        Its time of sending is when the body is ready: the time to open a connection counts as the
        server's. Bodies are made only then, because a thousand bodies at once, at the start of a
        run, would block the event loop.
        """
        connection = self._unused()
        if connection is not None:
            request = self._request(make_body())
            exchange.sent = monotonic()
            await self._send(connection, request, exchange)
            if not _was_stale(exchange):
                return
            self.retried += 1
            exchange.retry(asyncio.get_running_loop().create_future())
        async with self._connecting:
            request = self._request(make_body())
            exchange.sent = exchange.sent or monotonic()
            connection = await self._connected(exchange)
        if connection is not None:
            await self._send(connection, request, exchange)

    def _request(self, body: bytes) -> bytes:
        return b"%b%d\r\n\r\n%b" % (self._head, len(body), body)

    async def _send(self, connection: Connection, request: bytes, exchange: Exchange) -> None:
        self._busy.add(connection)
        try:
            connection.send(request, exchange)
            await exchange.over
        except asyncio.CancelledError:
            connection.abort()
            raise
        finally:
            self._busy.discard(connection)

    def _unused(self) -> Connection | None:
        # The connection that was used last is the least likely to be closed.
        while self._idle:
            connection = self._idle.pop()
            if connection.usable:
                return connection
        return None

    async def _connected(self, exchange: Exchange) -> Connection | None:
        try:
            async with asyncio.timeout(self._timeout):
                return await self._connect()
        except OSError as error:
            exchange.fail(of_error(error))
            return None

    async def _connect(self) -> Connection:
        _, connection = await asyncio.get_running_loop().create_connection(
            partial(Connection, self._buffer, self._names, self._free),
            next(self._addresses),
            self._target.port,
            ssl=self._tls,
            server_hostname=self._target.host if self._tls else None,
        )
        self.connections += 1
        return connection

    def _free(self, connection: Connection) -> None:
        if self._keep_alive:
            self._idle.append(connection)
        else:
            connection.abort()

    async def check_timeouts(self) -> None:
        """Fail requests that received nothing for too long; run until cancelled."""
        failure = Failure("timeout", f"no byte received in {self._timeout:g} s")
        while True:
            await asyncio.sleep(self._timeout / _SWEEPS)
            limit = monotonic() - self._timeout
            for connection in [one for one in self._busy if one.heard < limit]:
                connection.abort(failure)

    def close(self) -> None:
        """Close all connections; exchanges in flight never end."""
        for connection in [*self._idle, *self._busy]:
            connection.abort()
        self._idle.clear()


def _was_stale(exchange: Exchange) -> bool:
    """Return True if the server had closed the connection before the request was sent."""
    failure = exchange.failure
    return failure is not None and not exchange.touched and failure.kind in LOST


def tls_context() -> ssl.SSLContext:
    """Return a context that verifies certificates; SSL_CERT_FILE replaces the system's CAs."""
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    return context
