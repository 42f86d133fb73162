"""What a test can ask of a fleet of stand-ins beside the requests that a router sends it."""

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


async def test_adapters_are_loaded_and_unloaded_on_one_replica(fleet: StandInFleet) -> None:
    first, second = fleet.addresses
    await fleet.load_adapter(first, "a")
    assert (await adapters(first), await adapters(second)) == (["a"], [])
    await fleet.unload_adapter(first, "a")
    assert await adapters(first) == []


async def test_what_a_replica_refuses_is_an_error(fleet: StandInFleet) -> None:
    with pytest.raises(aiohttp.ClientResponseError):
        await fleet.unload_adapter(fleet.addresses[0], "nobody")


async def test_metrics_are_those_of_the_replica(fleet: StandInFleet) -> None:
    assert "vllm:num_requests_running" in await fleet.metrics(fleet.addresses[1])
