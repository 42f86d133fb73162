"""The compared setups: each routes as its name says."""

from __future__ import annotations

from collections import defaultdict
from contextlib import AsyncExitStack
from pathlib import Path

import aiohttp
import pytest

from extproc.lab.bench import peers
from extproc.lab.bench.load import drive
from extproc.lab.bench.ways import (
    ALONE,
    LUA,
    TRANSPORTS,
    Way,
    of_transport,
    start_upstreams,
    ways,
)
from extproc.lab.bench.wire import PATH, body
from extproc.lab.stack.envoy import Envoy
from extproc.lab.stack.processes import until
from tests.extent import PATIENCE

KEYS = 16
TURNS = 3


def named(name: str) -> Way:
    (way,) = (one for one in ways(with_peers=True) if one.name == name)
    return way


async def served(name: str, directory: Path, size: int) -> dict[int, set[str]]:
    """Return the upstreams that served requests with each prefix, one request after another."""
    async with AsyncExitStack() as cleanup:
        _, upstreams = await start_upstreams(directory, cleanup)
        running = await named(name).start(upstreams, directory, cleanup)
        envoy = running.proxy
        assert isinstance(envoy, Envoy)
        async with aiohttp.ClientSession() as session:
            for number in range(KEYS * TURNS):
                content = body(size, number % KEYS)
                async with session.post(envoy.url + PATH, data=content) as response:
                    assert response.status == 200
        await until(lambda: len(envoy.access_log()) == KEYS * TURNS, PATIENCE, "the access log")
        assert await running.undecided() == 0
        found: dict[int, set[str]] = defaultdict(set)
        for number, line in enumerate(envoy.access_log()):
            found[number % KEYS].add(line["upstream"])
        return found


@pytest.mark.parametrize("size", [1_000, 400_000])
@pytest.mark.parametrize("name", [LUA, *map(of_transport, TRANSPORTS)])
async def test_a_prefix_stays_on_its_upstream(name: str, size: int, tmp_path: Path) -> None:
    found = await served(name, tmp_path, size)
    assert all(len(upstreams) == 1 for upstreams in found.values())
    assert len(set.union(*found.values())) > 2


async def test_envoy_alone_uses_round_robin(tmp_path: Path) -> None:
    found = await served(ALONE, tmp_path, 1_000)
    assert len(set.union(*found.values())) == 8


@pytest.mark.parametrize("name", peers.PEERS)
async def test_another_router_responds(name: str, tmp_path: Path) -> None:
    if name not in peers.installed():
        pytest.skip(f"{name} is not installed: make .routers/.installed")
    async with AsyncExitStack() as cleanup:
        _, upstreams = await start_upstreams(tmp_path, cleanup)
        way = named(f"{name} {peers.PEERS[name]}")
        running = await way.start(upstreams, tmp_path, cleanup)
        load = await drive(running.port, 1_000, 2, 0.1)
        assert load.latencies
        assert not load.failed


@pytest.mark.parametrize(("name", "version"), peers.PEERS.items())
def test_the_tables_name_the_installed_versions(name: str, version: str) -> None:
    assert f"{name}=={version}" in (peers.ENVIRONMENT.parent / "Makefile").read_text()
