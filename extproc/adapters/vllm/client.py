"""HTTP to endpoints: one persistent connection each, and limits for every response.

Responses are read in pieces small enough that the event loop is never blocked for long. A response
that is too large or too late is abandoned together with its connection.
"""

from __future__ import annotations

import asyncio
import socket
from typing import ClassVar, NamedTuple, cast

from extproc import __version__
from extproc.adapters.vllm.http_response import HttpResponse
from extproc.adapters.vllm.readings import METRICS, Failure, Result

READ_SECONDS = 1.0
"""Limit of a whole reading: connection, request and response."""

# Servers close idle connections after 5 s (uvicorn); closing earlier avoids a failed reading.
_KEEPALIVE_SECONDS = 4.0
_PIECE_BYTES = 65_536
# A thousand adapters in vLLM's list.
_LONGEST_LIST = 2**19


class ResponseBody(NamedTuple):
    """The body of an endpoint's response."""

    content: bytes
    whole: bool
    """False if this is only the beginning of the body."""


class Client:
    """Sends GET requests to endpoints, one at a time to each."""

    def __init__(self) -> None:
        self._idle: dict[str, _Connection] = {}

    async def get(self, address: str, path: str) -> ResponseBody:
        """Return the body of the response. Raises Failure."""
        try:
            async with asyncio.timeout(READ_SECONDS):
                return await self._get(address, path)
        except TimeoutError:
            raise Failure(
                Result.TIMEOUT, f"no complete response within {READ_SECONDS:g} s"
            ) from None
        except OSError as error:
            raise Failure(Result.UNREACHABLE, error) from None

    def forget(self, address: str) -> None:
        """Close the connection of an endpoint that left."""
        connection = self._idle.pop(address, None)
        if connection is not None:
            connection.close()

    def close(self) -> None:
        """Close all connections."""
        for address in list(self._idle):
            self.forget(address)

    async def _get(self, address: str, path: str) -> ResponseBody:
        connection = self._idle.pop(address, None)
        if connection is None or not connection.is_usable():
            connection = await _connect(address)
        try:
            body = await connection.send(_request(address, path), _response_to(path))
        except BaseException:
            connection.close()
            raise
        if connection.is_usable():
            self._idle[address] = connection
        return body


def _response_to(path: str) -> HttpResponse:
    # The beginning of the metrics is enough: vLLM's load comes before the label sets of adapters,
    # whose number grows without limit. A list must be complete, and is never that long.
    if path == METRICS:
        return HttpResponse(may_be_cut=True)
    return HttpResponse(_LONGEST_LIST)


class _Connection(asyncio.BufferedProtocol):
    # Shared by all connections: each piece is parsed before the next one is read.
    _piece: ClassVar[memoryview] = memoryview(bytearray(_PIECE_BYTES))

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._response: HttpResponse | None = None
        self._body: asyncio.Future[ResponseBody] | None = None
        self._usable_until = self._loop.time() + _KEEPALIVE_SECONDS

    def is_usable(self) -> bool:
        """Return True if the connection can carry a request; otherwise close it."""
        if self._transport is not None and self._loop.time() > self._usable_until:
            self.close()
        return self._transport is not None

    async def send(self, request: bytes, response: HttpResponse) -> ResponseBody:
        """Send a request and return the body of its response. Raises Failure."""
        if self._transport is None:
            raise Failure(Result.UNREACHABLE, "the connection was closed")
        self._response, self._body = response, self._loop.create_future()
        self._transport.write(request)
        return await self._body

    def close(self) -> None:
        """Close the connection at once, without reading the rest."""
        if self._transport is not None:
            self._transport.abort()
            self._transport = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # A cast, because uvloop's transports are not subclasses.
        self._transport = cast("asyncio.Transport", transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._piece

    def buffer_updated(self, nbytes: int) -> None:
        if self._response is None:
            # There was no request.
            self.close()
            return
        try:
            self._response.add(self._piece[:nbytes])
        except Failure as failure:
            self._fail(failure)
        else:
            self._take()

    def eof_received(self) -> None:
        if self._response is not None:
            try:
                self._response.end()
            except Failure as failure:
                self._fail(failure)
            else:
                self._take()
        self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._fail(Failure(Result.UNREACHABLE, exc or "the connection was closed"))

    def _take(self) -> None:
        response = self._response
        if response is None or response.body is None:
            return
        if self._body is not None and not self._body.done():
            self._body.set_result(ResponseBody(response.body, response.whole))
        self._response = None
        self._usable_until = self._loop.time() + _KEEPALIVE_SECONDS
        if not response.reusable:
            self.close()

    def _fail(self, failure: Failure) -> None:
        if self._body is not None and not self._body.done():
            self._body.set_exception(failure)
        self._response = None
        self.close()


def _request(address: str, path: str) -> bytes:
    # Compressing 50 kB costs the server and the sidecar more than the network saves.
    return (
        f"GET {path} HTTP/1.1\r\nhost: {address}\r\naccept: */*\r\naccept-encoding: identity\r\n"
        f"user-agent: extproc/{__version__}\r\n\r\n"
    ).encode()


async def _connect(address: str) -> _Connection:
    host, _, port = address.rpartition(":")
    family = socket.AF_INET6 if host.startswith("[") else socket.AF_INET
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        made.setblocking(False)
        # Limits the kernel memory that an endless response can fill.
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _PIECE_BYTES)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(made, (host.strip("[]"), int(port)))
        _, connection = await loop.create_connection(_Connection, sock=made)
    except BaseException:
        made.close()
        raise
    return connection
