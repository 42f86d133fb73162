"""Fixtures of these tests."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from extproc.adapters.kubernetes.http_api import KubernetesApi
from tests.adapters.kubernetes.http_api.secure import SecureServer
from tests.adapters.kubernetes.http_api.servers import Handler, StartServer, write_kubeconfig


@pytest.fixture
async def start_server(tmp_path: Path) -> AsyncIterator[StartServer]:
    """Return a function that starts a server with one handler, and returns its API."""
    servers: list[TestServer] = []
    apis: list[KubernetesApi] = []

    async def start(handler: Handler) -> KubernetesApi:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", handler)
        server = TestServer(app)
        await server.start_server()
        servers.append(server)
        api = await KubernetesApi.connect(write_kubeconfig(tmp_path, str(server.make_url(""))))
        apis.append(api)
        return api

    yield start
    for api in apis:
        await api.close()
    for server in servers:
        await server.close()


@pytest.fixture
async def secure(tmp_path: Path) -> AsyncIterator[SecureServer]:
    server = SecureServer(tmp_path)
    await server.process.start()
    yield server
    await server.process.stop()


@pytest.fixture
async def secure_api(secure: SecureServer) -> AsyncIterator[KubernetesApi]:
    api = await KubernetesApi.connect(secure.process.kubeconfig)
    yield api
    await api.close()
