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
    """Return a function that starts a server."""
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
    """After each test, no task has failed and only the expected tasks are left."""
    failures: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context))
    scene = Scene()
    yield scene
    await scene.scraper.close()
    assert not failures


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten all waits of seconds, except time limits that tolerate slowness."""
    # A machine may pause for a moment: readings that must succeed have time for it.
    monkeypatch.setattr(client, "READ_SECONDS", 10.0)
    monkeypatch.setattr(schedule, "LONGEST_BACKOFF", 0.1)
    monkeypatch.setattr(found_adapters, "SPACING_SECONDS", 0.03)


@pytest.fixture
def impatient(quick: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the limit of a reading, for tests in which an endpoint hangs."""
    monkeypatch.setattr(client, "READ_SECONDS", 0.2)
