"""Fixtures: a stand-in API server that all tests share, each with its own namespace."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from itertools import count

import pytest

from extproc.adapters import backoff
from extproc.adapters.kubernetes import reflector
from extproc.adapters.kubernetes.http_api import KubernetesApi
from extproc.lab.api_server.process import StandInApiServer
from tests.adapters.kubernetes.http_api.secure import SecureServer

_numbers = count()


@pytest.fixture(autouse=True)
def _no_certificates(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip the system's certificates: reading them takes longer than most of these tests."""
    monkeypatch.setenv("SSL_CERT_FILE", "/dev/null")


@pytest.fixture(scope="session")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandInApiServer]:
    # With TLS, as in a cluster, so that requests use HTTP/2.
    server = SecureServer(tmp_path_factory.mktemp("api-server")).process
    asyncio.run(server.start())
    yield server
    asyncio.run(server.stop())


@pytest.fixture
async def server(running: StandInApiServer) -> StandInApiServer:
    """Return the server without faults."""
    await running.reset()
    return running


@pytest.fixture
def namespace() -> str:
    return f"test-{next(_numbers)}"


@pytest.fixture
async def api(server: StandInApiServer) -> AsyncIterator[KubernetesApi]:
    api = await KubernetesApi.connect(server.kubeconfig)
    yield api
    await api.close()


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the waits between attempts to an eightieth."""
    monkeypatch.setattr(backoff, "FIRST_SECONDS", 0.01)
    monkeypatch.setattr(backoff, "LONGEST_SECONDS", 0.375)
    monkeypatch.setattr(reflector, "LIST_SPREAD_SECONDS", 0.0)


@pytest.fixture
def short_watches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten watches to a second, the minimum; they count as silent soon after it."""
    monkeypatch.setattr(reflector, "WATCH_SECONDS", (1, 1))
    monkeypatch.setattr(reflector, "PINGED_WATCH_SECONDS", (1, 1))
    monkeypatch.setattr(reflector, "_SILENCE_SECONDS", 0.2)
    monkeypatch.setattr(reflector, "_SHORT_WATCH_SECONDS", 0.5)
