"""Fixtures of the tests in this directory."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from extproc.adapters.kubernetes.cluster import Cluster
from extproc.lab.api_server.process import StandInApiServer
from tests.adapters.discovery.scenes import Scene, observed


@pytest.fixture
async def scene(server: StandInApiServer, namespace: str) -> AsyncIterator[Scene]:
    cluster = Cluster(server.kubeconfig, allow_loopback=False)
    async with observed(cluster) as one:
        yield Scene(server, namespace, one)
