"""Model servers that fail: they never respond, break off, or refuse connections.

They run in the test's own process, so a test can count their requests and choose when they die.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n"
_CHUNK = b"6\r\n: go\n\n\r\n"


class Engine:
    """A model server that streams without end; a silent one accepts requests and never responds."""

    def __init__(self, *, silent: bool = False) -> None:
        self.address = ""
        self.held = 0
        """Number of requests that it holds now."""
        self._silent = silent
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[Engine]:
        """Listen on a free port within the context, or until `die`."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, backlog=1024)
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        try:
            yield self
        finally:
            self.die()

    def die(self) -> None:
        """Reset every connection, and refuse new ones."""
        assert self._server is not None
        self._server.close()
        for writer in list(self._writers):
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        with suppress(asyncio.IncompleteReadError, OSError):
            await reader.readuntil(b"\r\n\r\n")
            self.held += 1
            try:
                await self._respond(reader, writer)
            finally:
                self.held -= 1
        self._writers.discard(writer)
        writer.transport.abort()

    async def _respond(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not self._silent:
            port = self.address.rpartition(":")[2]
            writer.write(_HEAD + f"x-stand-in-port: {port}\r\n\r\n".encode() + _CHUNK)
        # Clients send nothing after the body, so the end of the data is the client's disconnect.
        while await reader.read(65_536):
            pass
