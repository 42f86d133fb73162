"""A stand-in API server for all tests of this directory; each has a namespace of its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from itertools import count

import pytest

from extproc.adapters import backoff
from extproc.adapters.kubernetes import reflector
from extproc.adapters.kubernetes.http_api import KubernetesApi
from extproc.lab.api_server.process import StandInApiServer

_numbers = count()


@pytest.fixture(autouse=True)
def _no_certificates(monkeypatch: pytest.MonkeyPatch) -> None:
    """To read the system's for each client takes longer than most of these tests."""
    monkeypatch.setenv("SSL_CERT_FILE", "/dev/null")


@pytest.fixture(scope="session")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandInApiServer]:
    server = StandInApiServer(tmp_path_factory.mktemp("api-server"))
    asyncio.run(server.start())
    yield server
    asyncio.run(server.stop())


@pytest.fixture
async def server(running: StandInApiServer) -> StandInApiServer:
    """With nothing wrong with it."""
    await running.faults(
        listening=True, frozen=False, forbidden=[], failing=0, list_delay=0, garbage=False
    )
    await running.rbac(None)
    await running.forget_requests()
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
    """Waits between attempts are an eightieth of what they are."""
    monkeypatch.setattr(backoff, "FIRST_SECONDS", 0.01)
    monkeypatch.setattr(backoff, "LONGEST_SECONDS", 0.375)


@pytest.fixture
def short_watches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Watches of a second, the shortest there are, which count as silent soon after that."""
    monkeypatch.setattr(reflector, "WATCH_SECONDS", (1, 1))
    monkeypatch.setattr(reflector, "_SILENCE_SECONDS", 0.2)
    monkeypatch.setattr(reflector, "_SHORT_WATCH_SECONDS", 0.5)
