"""A server that counts connections to an address that must receive none."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Canary:
    """A server on loopback that counts its connections."""

    def __init__(self) -> None:
        self.address = ""
        self.connections = 0

    @asynccontextmanager
    async def listening(self, host: str = "127.0.0.1") -> AsyncIterator[Canary]:
        """Listen within the context."""
        server = await asyncio.start_server(self._connected, host, 0)
        self.address = f"{host}:{server.sockets[0].getsockname()[1]}"
        async with server:
            yield self

    def _connected(self, _: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        writer.close()
