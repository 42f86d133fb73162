"""A port that nobody may connect to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Canary:
    """Listens on loopback, and counts who comes."""

    def __init__(self) -> None:
        self.address = ""
        self.connections = 0

    @asynccontextmanager
    async def listening(self, host: str = "127.0.0.1") -> AsyncIterator[Canary]:
        """Meanwhile it can be met."""
        server = await asyncio.start_server(self._met, host, 0)
        self.address = f"{host}:{server.sockets[0].getsockname()[1]}"
        async with server:
            yield self

    def _met(self, _: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        writer.close()
