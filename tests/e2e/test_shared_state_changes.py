"""Several gateways that share their state, while sidecars end and endpoints fail."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from extproc.lab.stack.processes import until
from tests.e2e.failing_endpoint import failing_endpoint
from tests.e2e.gateways import (
    Gateways,
    Processes,
    hits,
    hold,
    inflight_fleet,
    prompts,
    sessions,
    shared_state,
)
from tests.e2e.scene import MODEL, Options, Scene, chat
from tests.e2e.test_prefix_cache import FrequentScrapes, cached, text
from tests.extent import PATIENCE

Start = Callable[..., Awaitable[Gateways]]


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Start]:
    """Return a function that starts gateways for this test alone."""
    async with AsyncExitStack() as cleanup:

        async def start(options: Options, number: int = 2, **others: Any) -> Gateways:
            processes = await Processes.start(tmp_path, options, number, **others)
            cleanup.push_async_callback(processes.kill)
            return await cleanup.enter_async_context(sessions(processes))

        yield start


class TestSidecarThatEnds:
    OPTIONS = Options(strategy="LeastLoad", replica_arguments=("--time-scale", "1"))

    async def counts(self, scene: Scene, held: int) -> None:
        """Wait until the sidecar counts so many requests of all sidecars."""

        async def counted() -> bool:
            return sum((await inflight_fleet(scene.sidecar)).values()) == held

        await until(counted, PATIENCE, f"{held} requests counted")

    async def test_by_a_kill_takes_its_counts_with_it(self, start: Start) -> None:
        gateways = await start(self.OPTIONS)
        killed, other = gateways.scenes
        async with AsyncExitStack() as cleanup:
            for _ in range(3):
                await hold(killed, cleanup)
            await hold(other, cleanup)
            await self.counts(other, 4)
            await killed.sidecar.kill()
            await self.counts(other, 1)
            assert sum((await gateways.replicas.inflight()).values()) == 4
            await killed.sidecar.start()
            await hold(killed, cleanup)
            await self.counts(killed, 2)
            await self.counts(other, 2)

    async def test_and_starts_again_keeps_the_predicted_hits(self, start: Start) -> None:
        gateways = await start(cached(FrequentScrapes), 3)
        bodies = prompts("before the update", 4)
        assert max(await hits(gateways.scenes[0], bodies)) < 0.1
        for scene in gateways.scenes:
            await scene.sidecar.stop()
            await scene.sidecar.start()
            found = await hits(scene, bodies)
            assert min(found) >= 0.9, f"after a rolling update: {found}"
        await asyncio.gather(*(scene.sidecar.stop() for scene in gateways.scenes))
        await asyncio.gather(*(scene.sidecar.start() for scene in gateways.scenes))
        for scene in gateways.scenes:
            found = await hits(scene, bodies)
            assert min(found) >= 0.9, f"after a restart of all: {found}"


async def test_an_ejection_and_its_end_hold_for_all_gateways(start: Start) -> None:
    async with failing_endpoint() as failing:
        options = Options(
            replicas=2,
            more_endpoints=[failing.address],
            strategy="RoundRobin",
            replica_arguments=("--time-scale", "50"),
        )
        first, second = (await start(options)).scenes

        async def state(scene: Scene) -> str:
            endpoints = (await scene.sidecar.state())[MODEL]["endpoints"]
            found: str = {one["address"]: one["state"] for one in endpoints}[failing.address]
            return found

        async def is_ejected_everywhere() -> bool:
            assert (await first.send(chat("hello"))).status == 200
            return [await state(first), await state(second)] == ["ejected"] * 2

        await until(is_ejected_everywhere, PATIENCE, "the ejection at both")
        await failing.listen(200)

        async def serves_again_everywhere() -> bool:
            assert (await second.send(chat("hello"))).status == 200
            return [await state(first), await state(second)] == ["ready"] * 2

        await until(serves_again_everywhere, PATIENCE, "the return at both")
        assert not any("ejected" in one.sidecar.stderr.read_text() for one in (second,))


async def test_gateways_with_different_keys_share_nothing(start: Start) -> None:
    gateways = await start(
        cached(FrequentScrapes, replica_arguments=("--time-scale", "1")), keys=["team-a", "team-b"]
    )
    first, second = gateways.scenes
    async with AsyncExitStack() as cleanup:
        for scene in gateways.scenes:
            await hold(scene, cleanup, user=text("the same prompt", 8_000))

        async def have_written() -> bool:
            name = "extproc_shared_state_messages_total"
            written = [await one.metric(name, direction="out") for one in gateways.scenes]
            return min(written) > 2

        await until(have_written, PATIENCE, "messages of both")
        for scene in (first, second):
            assert (await shared_state(scene.sidecar))["peers"] == []
            assert sum((await inflight_fleet(scene.sidecar)).values()) == 1
    for scene in (first, second):
        (line,) = await scene.access_log(1)
        assert line["decision"]["predicted_hit"] == 0
