"""HTTP/1.1 to the API server, for servers and proxies that do not offer HTTP/2."""

from __future__ import annotations

from collections.abc import AsyncIterator

import aiohttp
from aiohttp.http_exceptions import LineTooLong

from extproc.adapters.kubernetes.credentials import Credentials
from extproc.adapters.kubernetes.errors import MalformedResponse
from extproc.adapters.kubernetes.response import Request, Timeouts
from extproc.adapters.kubernetes.transport import CONNECT_SECONDS, TOO_LONG, new_session


class Http1:
    """A pool of connections; each watch holds one."""

    notices_silence = False
    """Without PING, only the end of a watch shows that the server still responds."""

    def __init__(self, credentials: Credentials) -> None:
        self._credentials = credentials
        self._session: aiohttp.ClientSession | None = None

    async def request(self, request: Request) -> Http1Response:
        """Send a request, and return its response when it begins.

        Raises TimeoutError, OSError and aiohttp.ClientError.
        """
        self._session = self._session or new_session()
        configuration = self._credentials.configuration
        response = await self._session.request(
            request.method,
            request.url,
            headers=request.headers,
            data=request.body,
            timeout=_timeouts(request.timeouts),
            # Connections with other certificates end when they are idle.
            ssl=self._credentials.tls,
            server_hostname=configuration.tls_server_name,
            proxy=configuration.proxy,
            proxy_headers=configuration.proxy_headers,
        )
        return Http1Response(response)

    async def close(self) -> None:
        """Close all connections."""
        if self._session is not None:
            await self._session.close()


class Http1Response:
    """A response of aiohttp."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response

    @property
    def status(self) -> int:
        """Status of the response."""
        return self._response.status

    @property
    def reason(self) -> str:
        """Text after the status."""
        return self._response.reason or ""

    def header(self, name: str) -> str:
        """Return the value of a header; empty without one."""
        return self._response.headers.get(name, "")

    async def read(self) -> bytes:
        """Return the whole body."""
        return await self._response.read()

    async def lines(self) -> AsyncIterator[bytes | None]:
        """Yield the lines of the body. Raises MalformedResponse."""
        while line := await self._line():
            yield line

    def release(self) -> None:
        """Keep the connection if the body was read, else close it."""
        self._response.release()

    async def _line(self) -> bytes:
        try:
            return await self._response.content.readline()
        except (ValueError, LineTooLong):
            # The transport limits the length of a line.
            raise MalformedResponse(TOO_LONG) from None


def _timeouts(timeouts: Timeouts) -> aiohttp.ClientTimeout:
    return aiohttp.ClientTimeout(
        total=timeouts.total, sock_connect=CONNECT_SECONDS, sock_read=timeouts.read
    )
