"""Endpoints and a router, stopped when a test ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from extproc.adapters.vllm import client, found_adapters, schedule
from tests.adapters.vllm.servers import Scene, Server

Start = Callable[[], Awaitable[Server]]


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    """Starts a server."""
    servers: list[Server] = []

    async def one() -> Server:
        server = Server()
        await server.start()
        servers.append(server)
        return server

    yield one
    for server in servers:
        await server.stop()


@pytest.fixture
async def server(start: Start) -> Server:
    return await start()


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    """Whatever the endpoints did to it, nothing but its tasks may be left, and none has failed."""
    failures: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context))
    scene = Scene()
    yield scene
    await scene.scraper.close()
    assert not failures


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """What takes seconds takes fractions of one here, unless it is there to bear with slowness."""
    # A machine may stand still for a moment: readings that shall succeed have time for that.
    monkeypatch.setattr(client, "READ_SECONDS", 10.0)
    monkeypatch.setattr(schedule, "LONGEST_BACKOFF", 0.1)
    monkeypatch.setattr(found_adapters, "SPACING_SECONDS", 0.03)


@pytest.fixture
def impatient(quick: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests in which something hangs: a reading is given up soon."""
    monkeypatch.setattr(client, "READ_SECONDS", 0.2)
