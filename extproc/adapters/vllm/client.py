"""HTTP to endpoints: one kept-alive connection each, and no answer that could do harm.

Answers are read in pieces small enough that nothing else waits long. What is too large
or comes too late is not read to its end, also not to keep the connection.
"""

from __future__ import annotations

import asyncio
import socket
from typing import ClassVar, NamedTuple, cast

from extproc import __version__
from extproc.adapters.vllm.http_response import HttpResponse
from extproc.adapters.vllm.readings import METRICS, Failure, Result

READ_SECONDS = 1.0
"""For a whole reading: to connect, to ask and to be answered."""

# Servers close idle connections after 5 s (uvicorn); to be first spares a failed reading.
_KEEPALIVE_SECONDS = 4.0
_PIECE_BYTES = 65_536
# A thousand adapters, as vLLM tells them.
_LONGEST_LIST = 2**19


class Text(NamedTuple):
    """What an endpoint says."""

    content: bytes
    whole: bool
    """Whether this is all of it, and not only the beginning."""


class Client:
    """Reads what endpoints answer to GET. Each is asked one question at a time."""

    def __init__(self) -> None:
        self._idle: dict[str, _Connection] = {}

    async def get(self, address: str, path: str) -> Text:
        """The body of the answer. Raises Failure."""
        try:
            async with asyncio.timeout(READ_SECONDS):
                return await self._get(address, path)
        except TimeoutError:
            raise Failure(Result.TIMEOUT, f"no whole answer within {READ_SECONDS:g} s") from None
        except OSError as error:
            raise Failure(Result.UNREACHABLE, error) from None

    def forget(self, address: str) -> None:
        """The endpoint has left."""
        connection = self._idle.pop(address, None)
        if connection is not None:
            connection.close()

    def close(self) -> None:
        """Closes all connections."""
        for address in list(self._idle):
            self.forget(address)

    async def _get(self, address: str, path: str) -> Text:
        connection = self._idle.pop(address, None)
        if connection is None or not connection.is_usable():
            connection = await _connect(address)
        try:
            text = await connection.ask(_request(address, path), _answer_to(path))
        except BaseException:
            connection.close()
            raise
        if connection.is_usable():
            self._idle[address] = connection
        return text


def _answer_to(path: str) -> HttpResponse:
    # Of metrics the beginning is enough: vLLM's load stands before the label sets of adapters,
    # which get more and more. Of a list it is not, and it has no right to be that long.
    if path == METRICS:
        return HttpResponse(may_be_cut=True)
    return HttpResponse(_LONGEST_LIST)


class _Connection(asyncio.BufferedProtocol):
    # One for all: what was read into it is taken out before anything else is read.
    _piece: ClassVar[memoryview] = memoryview(bytearray(_PIECE_BYTES))

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._answer: HttpResponse | None = None
        self._answered: asyncio.Future[Text] | None = None
        self._usable_until = self._loop.time() + _KEEPALIVE_SECONDS

    def is_usable(self) -> bool:
        """Whether it can be asked: if not, it is closed."""
        if self._transport is not None and self._loop.time() > self._usable_until:
            self.close()
        return self._transport is not None

    async def ask(self, request: bytes, answer: HttpResponse) -> Text:
        """Sends a request and returns the body of the answer. Raises Failure."""
        if self._transport is None:
            raise Failure(Result.UNREACHABLE, "the connection was closed")
        self._answer, self._answered = answer, self._loop.create_future()
        self._transport.write(request)
        return await self._answered

    def close(self) -> None:
        """Closes it at once, whatever may still come."""
        if self._transport is not None:
            self._transport.abort()
            self._transport = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # A cast, since uvloop's are not derived from it.
        self._transport = cast("asyncio.Transport", transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._piece

    def buffer_updated(self, nbytes: int) -> None:
        if self._answer is None:
            # Nobody asked.
            self.close()
            return
        try:
            self._answer.add(self._piece[:nbytes])
        except Failure as failure:
            self._fail(failure)
        else:
            self._take()

    def eof_received(self) -> None:
        if self._answer is not None:
            try:
                self._answer.end()
            except Failure as failure:
                self._fail(failure)
            else:
                self._take()
        self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._fail(Failure(Result.UNREACHABLE, exc or "the connection was closed"))

    def _take(self) -> None:
        answer = self._answer
        if answer is None or answer.body is None:
            return
        if self._answered is not None and not self._answered.done():
            self._answered.set_result(Text(answer.body, answer.whole))
        self._answer = None
        self._usable_until = self._loop.time() + _KEEPALIVE_SECONDS
        if not answer.reusable:
            self.close()

    def _fail(self, failure: Failure) -> None:
        if self._answered is not None and not self._answered.done():
            self._answered.set_exception(failure)
        self._answer = None
        self.close()


def _request(address: str, path: str) -> bytes:
    # Compressed, 50 kB would cost more there and here than they do on their way.
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
        # Who sends without end fills this, and no more of the kernel's memory.
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _PIECE_BYTES)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(made, (host.strip("[]"), int(port)))
        _, connection = await loop.create_connection(_Connection, sock=made)
    except BaseException:
        made.close()
        raise
    return connection
