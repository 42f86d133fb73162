"""Several gateways act as one: their sidecars share their state through a real Valkey."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from typing import Any

import pytest

from extproc.lab.stack.processes import until
from tests.e2e.gateways import (
    Gateways,
    Processes,
    hits,
    hold,
    prompts,
    sessions,
    shared_state,
)
from tests.e2e.scene import Json, chat
from tests.e2e.test_prefix_cache import FrequentScrapes, cached, readings_are_idle
from tests.extent import PATIENCE, extent

LEAST_LOAD = "least-load"
OTHER = "other"
LIMITED = "limited"
GATEWAYS = 3
SAMPLES = extent(20, full=100)
SAMPLE_SECONDS = 0.1


class Models(FrequentScrapes):
    """Models with the same replicas: two with PrefixCache, and two with LeastLoad."""

    def models(self, addresses: Any) -> Json:
        (first,) = super().models(addresses)["models"]
        least_load = {
            "name": LEAST_LOAD,
            "endpoints": list(addresses),
            "loadBalancing": {"strategy": "LeastLoad"},
        }
        limited = {**least_load, "name": LIMITED, "flowControl": {"maxInflight": 1}}
        return {"models": [first, {**first, "name": OTHER}, least_load, limited]}


@pytest.fixture(scope="module")
def _processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    directory = tmp_path_factory.mktemp("gateways")
    options = cached(Models, replica_arguments=("--time-scale", "2", "--kv-tokens", "200000"))
    processes = asyncio.run(Processes.start(directory, options, GATEWAYS))
    yield processes
    asyncio.run(processes.kill())


@pytest.fixture
async def gateways(_processes: Processes) -> AsyncIterator[Gateways]:
    """Three gateways that all tests share, without requests in flight."""
    async with sessions(_processes) as gateways:
        await gateways.agree()
        yield gateways


class TestPrompts:
    @pytest.mark.parametrize("first", range(GATEWAYS))
    async def test_sent_through_one_gateway_are_warm_through_the_others(
        self, gateways: Gateways, first: int
    ) -> None:
        bodies = prompts(f"first through {first}", 4)
        scene = gateways.scenes[first]
        assert max(await hits(scene, bodies)) < 0.1
        for other in gateways.scenes:
            await gateways.know_the_same_blocks()
            found = await hits(other, bodies)
            assert min(found) >= 0.9, found

    async def test_go_to_the_same_replica_through_each_gateway(self, gateways: Gateways) -> None:
        for body in prompts("home", 3):
            served = set()
            for scene in gateways.scenes:
                await readings_are_idle(scene.sidecar)
                served.add((await scene.send(body)).replica)
                await gateways.know_the_same_blocks()
            assert len(served) == 1

    async def test_of_one_model_are_not_warm_for_another(self, gateways: Gateways) -> None:
        first, second, _ = gateways.scenes
        assert max(await hits(first, prompts("of a model", 2))) < 0.1
        await gateways.know_the_same_blocks()
        assert max(await hits(second, prompts("of a model", 2, OTHER))) < 0.1
        await gateways.know_the_same_blocks()
        assert min(await hits(first, prompts("of a model", 2, OTHER))) >= 0.9


class TestFlowControl:
    async def test_room_is_that_of_all_gateways(self, gateways: Gateways) -> None:
        first, *others = gateways.scenes
        async with AsyncExitStack() as held:
            for _ in gateways.replicas.addresses:
                await hold(first, held, LIMITED)
            assert set((await gateways.agree()).values()) == {1}
            waiting = [
                asyncio.create_task(scene.send(chat(f"{number}", model=LIMITED)))
                for scene in others
                for number in range(4)
            ]
            for scene in others:
                await scene.agree_on_queue(4, LIMITED)
        assert {reply.status for reply in await asyncio.gather(*waiting)} == {200}
        for scene in others:
            await scene.agree_on_queue(0, LIMITED)


class TestInflight:
    async def test_of_the_fleet_is_what_the_replicas_hold(self, gateways: Gateways) -> None:
        """Sample ten times a second while requests begin and end; the counts lag a little."""
        stop = asyncio.Event()

        async def client(number: int) -> None:
            turn = 0
            while not stop.is_set():
                turn += 1
                scene = gateways.scenes[(number + turn) % GATEWAYS]
                tokens = 20 + 40 * ((number + turn) % 3)
                await scene.send(chat(f"client {number}, turn {turn}", tokens=tokens))

        clients = [asyncio.create_task(client(number)) for number in range(12)]
        lags: list[float] = []
        loads: list[int] = []
        try:
            for _ in range(SAMPLES):
                began = time.monotonic()
                try:
                    loads.append(sum((await gateways.agree()).values()))
                except AssertionError as error:
                    pytest.fail(f"{error}; the greatest lag before: {max(lags, default=0):.3f} s")
                lags.append(time.monotonic() - began)
                await asyncio.sleep(SAMPLE_SECONDS)
        finally:
            stop.set()
            await asyncio.gather(*clients)
        assert max(loads) > 3, f"{loads}; the greatest lag: {max(lags):.3f} s"
        assert await gateways.agree() == {}

    async def test_is_that_of_the_fleet_in_the_metadata(self, gateways: Gateways) -> None:
        held: list[dict[str, int]] = [{}]
        served: dict[str, str] = {}
        async with AsyncExitStack() as cleanup:
            for number in range(9):
                scene = gateways.scenes[number % GATEWAYS]
                response = await hold(scene, cleanup, LEAST_LOAD)
                address = f"127.0.0.1:{response.headers['x-stand-in-port']}"
                served[response.headers["x-request-id"]] = address
                held.append(await gateways.agree())

        def logged() -> dict[str, int]:
            lines = (line for scene in gateways.scenes for line in scene.envoy.access_log())
            inflight = {line["request_id"]: line["decision"].get("inflight") for line in lines}
            return {one: inflight[one] for one in served if one in inflight}

        await until(lambda: len(logged()) == len(served), PATIENCE, "all log lines")
        before = zip(served.values(), held, strict=False)
        assert list(logged().values()) == [found.get(address, 0) for address, found in before]

    async def test_spreads_evenly_with_least_load(self, gateways: Gateways) -> None:
        """Requests come one after another through all gateways, each when all agree."""
        async with AsyncExitStack() as cleanup:
            for number in range(20):
                await hold(gateways.scenes[number % GATEWAYS], cleanup, LEAST_LOAD)
                held = await gateways.agree()
                counts = [held.get(address, 0) for address in gateways.replicas.addresses]
                assert sum(counts) == number + 1
                assert max(counts) - min(counts) <= 1, counts
        assert await gateways.agree() == {}

    async def test_is_own_and_of_the_fleet_in_the_state(self, gateways: Gateways) -> None:
        async with AsyncExitStack() as cleanup:
            for scene in gateways.scenes:
                await hold(scene, cleanup, LEAST_LOAD)
            held = await gateways.agree()
            own = [await scene.sidecar.inflight() for scene in gateways.scenes]
            assert [sum(one.values()) for one in own] == [1] * GATEWAYS
            assert sum(held.values()) == GATEWAYS
            for scene in gateways.scenes:
                state = await shared_state(scene.sidecar)
                assert state["connected"]
                assert [peer["inflight"] for peer in state["peers"]] == [1] * (GATEWAYS - 1)
                assert await scene.metric("extproc_shared_state_connected") == 1
                assert await scene.metric("extproc_shared_state_peers") == GATEWAYS - 1
