"""The methods of a stand-in fleet that tests use."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from extproc.lab.stack.stand_in_fleet import StandInFleet


@pytest.fixture
async def fleet(tmp_path: Path) -> AsyncIterator[StandInFleet]:
    replicas = StandInFleet(2, tmp_path, ["--time-scale", "50", "--max-loras", "1"])
    await replicas.start()
    yield replicas
    await replicas.stop()


async def adapters(address: str) -> list[str]:
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"http://{address}/v1/models") as response,
    ):
        models = (await response.json())["data"]
    return [model["id"] for model in models if model["parent"]]


async def test_loads_and_unloads_adapters_on_one_replica(fleet: StandInFleet) -> None:
    first, second = fleet.addresses
    await fleet.load_adapter(first, "a")
    assert (await adapters(first), await adapters(second)) == (["a"], [])
    await fleet.unload_adapter(first, "a")
    assert await adapters(first) == []


async def test_raises_the_error_of_a_replica(fleet: StandInFleet) -> None:
    with pytest.raises(aiohttp.ClientResponseError):
        await fleet.unload_adapter(fleet.addresses[0], "unknown")


async def test_returns_the_metrics_of_one_replica(fleet: StandInFleet) -> None:
    assert "vllm:num_requests_running" in await fleet.metrics(fleet.addresses[1])
