"""The connections to the API server: one over HTTP/2, or a pool over HTTP/1.1."""

from __future__ import annotations

import asyncio
import ssl
from time import monotonic
from urllib.parse import SplitResult
from urllib.request import getproxies, proxy_bypass

from extproc.adapters.kubernetes.credentials import Credentials
from extproc.adapters.kubernetes.http1 import Http1
from extproc.adapters.kubernetes.http2_connection import Http2Connection
from extproc.adapters.kubernetes.transport import CONNECT_SECONDS

_FALLBACK_SECONDS = 600.0
"""Time after which a server that did not offer HTTP/2 is asked again."""


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
        """Return a connection for one request. Raises TimeoutError and OSError."""
        if self._url.scheme != "https" or self._has_proxy() or monotonic() < self._http1_until:
            return self._http1
        tls = self._credentials.tls_http2
        for connection in self._http2:
            if connection.tls is tls and connection.has_room:
                return connection
        if self._opening is None:
            self._opening = asyncio.create_task(self._open(tls))
            self._opening.add_done_callback(self._opened)
        # All requests that need the connection wait for it, and a cancelled one does not end it.
        return await asyncio.shield(self._opening) or self._http1

    async def close(self) -> None:
        """Close all connections."""
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.wait([self._opening])
        for connection in self._http2:
            connection.abort()
        await self._http1.close()

    async def _open(self, tls: ssl.SSLContext) -> Http2Connection | None:
        """Return a new connection; None if the server does not offer HTTP/2."""
        self._http2 = [one for one in self._http2 if not one.closed]
        for one in self._http2:
            if one.tls is not tls:
                one.retire()
        async with asyncio.timeout(CONNECT_SECONDS):
            connection = await open_http2(
                str(self._url.hostname),
                self._port,
                tls,
                self._credentials.configuration.tls_server_name,
            )
        if connection is None:
            self._http1_until = monotonic() + _FALLBACK_SECONDS
        else:
            self._http2.append(connection)
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

    Without TLS the server must expect HTTP/2. Raises OSError.
    """
    loop = asyncio.get_running_loop()
    name = (server_name or host) if tls else None
    _, connection = await loop.create_connection(
        lambda: Http2Connection(tls), host, port, ssl=tls, server_hostname=name
    )
    try:
        return connection if await connection.greeted else None
    except BaseException:
        connection.abort()
        raise
