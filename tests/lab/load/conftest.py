"""Servers on loopback ports whose responses a test writes."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field

import pytest

Respond = Callable[[bytes, asyncio.StreamWriter], Awaitable[None]]
"""A function that gets the body of a request and writes a response."""


@dataclass
class Server:
    """A server that answers each request with `respond`."""

    respond: Respond
    port: int = 0
    bodies: list[bytes] = field(default_factory=list)
    heads: list[bytes] = field(default_factory=list)
    connections: int = 0

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            with suppress(asyncio.IncompleteReadError, ConnectionError):
                while not writer.is_closing():
                    await self._handle_request(reader, writer)
        finally:
            # Also when the end of a test cancels this task.
            writer.close()

    async def _handle_request(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length:")[2].split()[0])
        body = await reader.readexactly(length)
        self.heads.append(head)
        self.bodies.append(body)
        await self.respond(body, writer)
        await writer.drain()


Serve = Callable[..., Awaitable[Server]]


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    servers: list[asyncio.Server] = []

    async def start(respond: Respond, tls: ssl.SSLContext | None = None) -> Server:
        server = Server(respond)
        listening = await asyncio.start_server(server.handle, "127.0.0.1", 0, ssl=tls)
        servers.append(listening)
        server.port = listening.sockets[0].getsockname()[1]
        return server

    yield start
    for listening in servers:
        listening.close()
