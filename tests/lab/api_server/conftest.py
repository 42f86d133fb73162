"""A stand-in API server for each module of tests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import aiohttp
import pytest
from kubernetes.aio import client

from extproc.lab.api_server.process import StandInApiServer
from tests.e2e.forked import ForkedApiServer
from tests.lab.api_server.api import (
    Api,
    official_client,
)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandInApiServer]:
    server = ForkedApiServer(tmp_path_factory.mktemp("api-server"))
    asyncio.run(server.start())
    yield server
    asyncio.run(server.stop())
    assert server.returncode() == 0
    assert server.error_output() == ""


@pytest.fixture
async def server(running: StandInApiServer) -> StandInApiServer:
    """A server without faults."""
    await running.reset()
    return running


@pytest.fixture
async def api(server: StandInApiServer) -> AsyncIterator[Api]:
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        api = Api(server, session)
        # Create the namespace before a test counts events.
        await api.put("first")
        await server.delete("ConfigMap", api.namespace, "first")
        yield api


@pytest.fixture
async def official(server: StandInApiServer) -> AsyncIterator[client.ApiClient]:
    async with official_client(server) as found:
        yield found
