"""The connections of one process: kept for the next request, made a few at a time, timed out."""

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
"""Connections in the making at a time. A thousand at once overflow the queues of those who
listen, and a loop that only connects hears nothing of the answers that come meanwhile."""

_SWEEPS = 10
"""How often per timeout requests are looked after: a timer for each would cost more."""


class Pool:
    """Sends requests to a target."""

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
        """Requests sent again, because the server had closed the connection meanwhile."""
        self.connections = 0
        """Made so far."""

    async def ask(self, make_body: Callable[[], bytes], exchange: Exchange) -> None:
        """Sends a request and waits until it is over.

        It counts as sent when the client's part is done, of which the body is one; to make a
        connection is the server's. Bodies are made as late as that, because a thousand of them
        at once, at the beginning of a run, would keep the loop from everything else.
        """
        connection = self._unused()
        if connection is not None:
            request = self._request(make_body())
            exchange.sent = monotonic()
            await self._send(connection, request, exchange)
            if not _was_stale(exchange):
                return
            self.retried += 1
            exchange.again(asyncio.get_running_loop().create_future())
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
        # The one used last is the one least likely to have been closed.
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

    async def look_after(self) -> None:
        """Fails requests of which nothing was heard for too long; until cancelled."""
        failure = Failure("timeout", f"not a byte in {self._timeout:g} s")
        while True:
            await asyncio.sleep(self._timeout / _SWEEPS)
            limit = monotonic() - self._timeout
            for connection in [one for one in self._busy if one.heard < limit]:
                connection.abort(failure)

    def close(self) -> None:
        """Closes all connections; those who wait for an answer wait for ever."""
        for connection in [*self._idle, *self._busy]:
            connection.abort()
        self._idle.clear()


def _was_stale(exchange: Exchange) -> bool:
    """Whether the server had closed the connection when the request was sent on it."""
    failure = exchange.failure
    return failure is not None and not exchange.touched and failure.kind in LOST


def tls_context() -> ssl.SSLContext:
    """Verifies what it connects to; SSL_CERT_FILE names other authorities than the system's."""
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    return context
