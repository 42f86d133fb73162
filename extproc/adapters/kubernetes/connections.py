"""The connections to the API server: one over HTTP/2, or a pool over HTTP/1.1."""

from __future__ import annotations

import asyncio
import socket
import ssl
from time import monotonic
from urllib.parse import SplitResult
from urllib.request import getproxies, proxy_bypass

from aiohappyeyeballs import start_connection

from extproc.adapters.kubernetes.credentials import Credentials
from extproc.adapters.kubernetes.http1 import Http1
from extproc.adapters.kubernetes.http2_connection import Http2Connection
from extproc.adapters.kubernetes.http2_stream import NotProcessed
from extproc.adapters.kubernetes.transport import CONNECT_SECONDS, HANDSHAKE_SECONDS

_FALLBACK_SECONDS = 600.0
"""Time after which a server that did not offer HTTP/2 is asked again."""

_NEXT_ADDRESS_SECONDS = 0.25
"""Time after which the next address of the host is tried too, as RFC 8305 recommends."""


class Connections:
    """Opens connections when they are needed.

    Over HTTP/2, all requests share one connection, as far as the server accepts that many streams.
    Plain HTTP, proxies and servers that do not offer HTTP/2 get HTTP/1.1.
    """

    def __init__(self, url: SplitResult, port: int, credentials: Credentials) -> None:
        self._url = url
        self._port = port
        self._credentials = credentials
        self._http1 = Http1(credentials)
        self._http1_until = 0.0
        self._http2: list[Http2Connection] = []
        self._opening: asyncio.Task[Http2Connection | None] | None = None

    async def choose(self) -> Http1 | Http2Connection:
        """Return a connection that accepts a request.

        Raises TimeoutError and OSError; NotProcessed if another connection may accept it.
        """
        if self._url.scheme != "https" or self._has_proxy() or monotonic() < self._http1_until:
            return self._http1
        tls = self._credentials.tls_http2
        while (usable := self._usable(tls)) is None:
            if self._opening is None:
                self._opening = asyncio.create_task(self._open(tls))
                self._opening.add_done_callback(self._opened)
            # All requests that need the connection wait for it, and a cancelled one does not end
            # it. Another request may take the last stream of the new connection.
            opened = await asyncio.shield(self._opening)
            if opened is None:
                return self._http1
            if opened.closed:
                raise NotProcessed("HTTP/2: the server ended a new connection")
        return usable

    async def close(self) -> None:
        """Close all connections."""
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.wait([self._opening])
        for connection in self._http2:
            connection.abort()
        await self._http1.close()

    def _usable(self, tls: ssl.SSLContext) -> Http2Connection | None:
        """Return a connection that accepts a request, and retire those that are not needed."""
        self._http2 = [one for one in self._http2 if not one.closed]
        usable = None
        for one in self._http2:
            if one.tls is not tls or (usable is not None and one.idle):
                one.retire()
            elif usable is None and one.has_room:
                usable = one
        return usable

    async def _open(self, tls: ssl.SSLContext) -> Http2Connection | None:
        """Return a new connection; None if the server does not offer HTTP/2."""
        connection = await open_http2(
            str(self._url.hostname),
            self._port,
            tls,
            self._credentials.configuration.tls_server_name,
        )
        if connection is None:
            self._http1_until = monotonic() + _FALLBACK_SECONDS
        elif connection.has_room or connection.closed:
            self._http2.append(connection)
        else:
            connection.abort()
            raise ConnectionError("HTTP/2: the server accepts no request")
        return connection

    def _opened(self, opening: asyncio.Task[Http2Connection | None]) -> None:
        self._opening = None
        if not opening.cancelled():
            # Otherwise asyncio logs an error that no request was left to receive.
            opening.exception()

    def _has_proxy(self) -> bool:
        if self._credentials.configuration.proxy:
            return True
        return "https" in getproxies() and not proxy_bypass(str(self._url.hostname))


async def open_http2(
    host: str, port: int, tls: ssl.SSLContext | None, server_name: str | None = None
) -> Http2Connection | None:
    """Return a connection that is ready; None if the server does not offer HTTP/2.

    Without TLS the server must expect HTTP/2. Raises TimeoutError and OSError.
    """
    async with asyncio.timeout(CONNECT_SECONDS):
        connected = await _connected(host, port)
    name = (server_name or host) if tls else None
    async with asyncio.timeout(HANDSHAKE_SECONDS):
        _, connection = await asyncio.get_running_loop().create_connection(
            lambda: Http2Connection(tls), sock=connected, ssl=tls, server_hostname=name
        )
        try:
            return connection if await connection.greeted else None
        except BaseException:
            connection.abort()
            raise


async def _connected(host: str, port: int) -> socket.socket:
    """Connect to the first address that responds, so that the others cost no time.

    asyncio's create_connection can do the same, but uvloop's cannot.
    """
    loop = asyncio.get_running_loop()
    addresses = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return await start_connection(addresses, happy_eyeballs_delay=_NEXT_ADDRESS_SECONDS)
