"""One request over HTTP/2, and its response."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable
from http import HTTPStatus
from math import inf

from extproc.adapters.kubernetes.errors import MalformedResponse
from extproc.adapters.kubernetes.response import Timeouts
from extproc.adapters.kubernetes.transport import EVENT_BYTES, TOO_LONG

BODY_BYTES = 2**28
"""Longest body that is read whole: 500 objects of the largest size are never as long."""


class NotProcessed(ConnectionError):
    """The server did not process the request, so it can be sent again."""


class Http2Stream:
    """A response, as far as it has arrived; the connection feeds it."""

    def __init__(
        self,
        number: int,
        timeouts: Timeouts,
        consumed: Callable[[int, int], None],
        finished: Callable[[Http2Stream], None],
    ) -> None:
        """`consumed` receives the stream's number and the bytes that were taken from it."""
        self.number = number
        self.status = 0
        """Status of the response; 0 until it arrives."""
        self.ended = False
        """True if the stream has no more frames: its end or an error arrived."""
        self.sent = True
        """False while a part of the request is still to be sent."""
        self.is_safe = False
        """True if the request changes nothing, so that it may be sent twice."""
        self._headers: dict[str, str] = {}
        self._pieces: deque[tuple[bytes, int]] = deque()
        self._error: OSError | None = None
        self._alive = False
        self._changed = asyncio.Event()
        self._consumed = consumed
        self._finished = finished
        self._timeouts = timeouts
        self._began = self._progress_at = asyncio.get_running_loop().time()

    def lost(self, why: str) -> None:
        """End the stream, because the connection was closed.

        A server that closes a connection while a request is on its way to it may not have
        processed the request, and its GOAWAY may be lost with the connection.
        """
        again = self.is_safe and not self.status
        self.on_end(NotProcessed(why) if again else ConnectionError(why))

    @property
    def reason(self) -> str:
        """Standard text of the status."""
        known = self.status in HTTPStatus.__members__.values()
        return HTTPStatus(self.status).phrase if known else ""

    def header(self, name: str) -> str:
        """Return the value of a header; empty without one."""
        return self._headers.get(name.lower(), "")

    async def opened(self) -> None:
        """Wait for the status. Raises TimeoutError and OSError."""
        while not self.status:
            if self._error is not None:
                raise self._error
            if self.ended:
                raise ConnectionError("HTTP/2: response without a status")
            await self._change(self._timeouts.head)

    async def writable(self) -> None:
        """Wait until the server may have made room for a part of the request."""
        await self._change(self._timeouts.head)

    async def read(self) -> bytes:
        """Return the whole body. Raises TimeoutError, OSError and MalformedResponse."""
        pieces, size = list[bytes](), 0
        while (piece := await self._piece()) != b"":
            pieces.append(piece or b"")
            size += len(piece or b"")
            if size > BODY_BYTES:
                raise MalformedResponse(f"the response has more than {BODY_BYTES} bytes")
        return b"".join(pieces)

    async def lines(self) -> AsyncIterator[bytes | None]:
        """Yield the lines of the body, and None after each response to a PING."""
        begun, size = list[bytes](), 0
        while (piece := await self._piece()) != b"":
            if piece is None:
                yield None
                continue
            *ends, rest = piece.split(b"\n")
            for end in ends:
                yield b"".join([*begun, end])
                begun, size = [], 0
            begun.append(rest)
            size += len(rest)
            if size > EVENT_BYTES:
                raise MalformedResponse(TOO_LONG)
        if size:
            yield b"".join(begun)

    def release(self) -> None:
        """End the stream; the rest of the body is lost."""
        for _, size in self._pieces:
            self._consumed(self.number, size)
        self._pieces.clear()
        self._finished(self)

    async def _change(self, seconds: float) -> None:
        """Wait until the connection has fed the stream.

        Raises TimeoutError after these seconds without progress, or at the end of the total time.
        """
        until = min(self._began + self._timeouts.total, self._progress_at + seconds)
        self._changed.clear()
        async with asyncio.timeout_at(None if until == inf else until):
            await self._changed.wait()

    def on_headers(self, fields: Iterable[tuple[bytes, bytes]]) -> None:
        """Take the headers of the response."""
        self._headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in fields}
        status = self._headers.get(":status", "")
        self.status = int(status) if status.isdecimal() else 0
        self._progress()

    def on_data(self, data: bytes, size: int) -> None:
        """Take a part of the body, which took `size` bytes of the window."""
        self._pieces.append((data, size))
        self._progress()

    def on_end(self, error: OSError | None = None) -> None:
        """Take the end of the response, or the error that ended it."""
        if not self.ended:
            self.ended = True
            self._error = error
            self.wake()

    def on_alive(self) -> None:
        """Take a response to a PING."""
        self._alive = True
        self.wake()

    def wake(self) -> None:
        """Wake the reader: what it waits for may have come."""
        self._changed.set()

    def _progress(self) -> None:
        self._progress_at = asyncio.get_running_loop().time()
        self.wake()

    async def _piece(self) -> bytes | None:
        """Return the next part of the body, b"" at its end; None after a response to a PING."""
        while True:
            while self._pieces:
                data, size = self._pieces.popleft()
                self._consumed(self.number, size)
                if data:
                    return data
            if self._error is not None:
                raise self._error
            if self.ended:
                return b""
            if self._alive:
                self._alive = False
                return None
            await self._change(self._timeouts.read)
