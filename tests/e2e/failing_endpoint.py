"""A model server that fails in a chosen way."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Literal

from extproc.lab.stack.processes import free_port

Manner = Literal["resets", "hangs", 200, 404, 422, 429, 500, 503]
"""The result of a request: a connection reset, no response, or a response with this status."""

# l_onoff and l_linger: a close sends RST instead of FIN.
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)


class FailingEndpoint:
    """A server that refuses connections until it listens."""

    def __init__(self) -> None:
        self.port = free_port()
        self.address = f"127.0.0.1:{self.port}"
        self.manner: Manner = 200
        self.connections = 0
        """Number of connections that clients opened."""
        self._server: asyncio.Server | None = None

    async def listen(self, manner: Manner) -> None:
        """Start to accept connections."""
        self.manner = manner
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)

    async def close(self) -> None:
        """Refuse connections again."""
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            await reader.readuntil(b"\r\n\r\n")
            if self.manner == "hangs":
                await reader.read()
            elif self.manner == "resets":
                connection: socket.socket = writer.get_extra_info("socket")
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
            else:
                head = f"HTTP/1.1 {self.manner} -\r\ncontent-length: 2\r\nconnection: close\r\n\r\n"
                writer.write(head.encode() + b"{}")
                await writer.drain()
                writer.write_eof()
                await reader.read()  # closing a socket with unread bytes would reset it
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def failing_endpoint() -> AsyncIterator[FailingEndpoint]:
    """Yield a failing endpoint and close it at the end."""
    endpoint = FailingEndpoint()
    try:
        yield endpoint
    finally:
        await endpoint.close()
