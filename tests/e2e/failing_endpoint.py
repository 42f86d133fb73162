"""A model server that fails in a way of one's choice."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Literal

from extproc.lab.stack.processes import free_port

Manner = Literal["resets", "hangs", 200, 404, 422, 429, 500, 503]
"""What becomes of a request: a reset connection, nothing, or an answer with that status."""

# RST in place of FIN: l_onoff, l_linger.
_ABRUPTLY = struct.pack("ii", 1, 0)


class FailingEndpoint:
    """It refuses connections until it listens."""

    def __init__(self) -> None:
        self.port = free_port()
        self.address = f"127.0.0.1:{self.port}"
        self.manner: Manner = 200
        self.tried = 0
        """Connections that were opened."""
        self._server: asyncio.Server | None = None

    async def listen(self, manner: Manner) -> None:
        """From now on it takes connections."""
        self.manner = manner
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)

    async def close(self) -> None:
        """It refuses connections again."""
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.tried += 1
        try:
            await reader.readuntil(b"\r\n\r\n")
            if self.manner == "hangs":
                await reader.read()
            elif self.manner == "resets":
                connection: socket.socket = writer.get_extra_info("socket")
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _ABRUPTLY)
            else:
                head = f"HTTP/1.1 {self.manner} -\r\ncontent-length: 2\r\nconnection: close\r\n\r\n"
                writer.write(head.encode() + b"{}")
                await writer.drain()
                writer.write_eof()
                await reader.read()  # what is unread when a socket is closed resets it
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def failing_endpoint() -> AsyncIterator[FailingEndpoint]:
    """One that is closed in the end."""
    one = FailingEndpoint()
    try:
        yield one
    finally:
        await one.close()
