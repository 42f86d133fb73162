"""The manifests, built by kubectl once for all tests."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.manifests.builds import BUILDS, Build, built
from tests.manifests.gateway import RunningGateway, run_gateway


@pytest.fixture(params=BUILDS, ids=lambda path: path)
def build(request: pytest.FixtureRequest) -> Build:
    """Return each kustomization in turn."""
    path: str = request.param
    return built(path)


@pytest.fixture(scope="session")
def every_build() -> dict[str, Build]:
    """Return all kustomizations by path."""
    return {path: built(path) for path in BUILDS}


@pytest.fixture
async def gateway(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[RunningGateway]:
    """Run the bundled gateway of base/ on loopback."""
    # A unix socket's path may have 107 characters; pytest's own directories can be longer.
    directory = tmp_path_factory.mktemp("gw")
    async with run_gateway(directory) as running:
        yield running
