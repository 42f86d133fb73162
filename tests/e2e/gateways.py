"""Several gateways in front of the same replicas. Each is an Envoy with its own sidecar.

Their sidecars share their state through a real Valkey.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from extproc.envoy import envoy_configuration
from extproc.lab.stack.envoy import Envoy, EnvoyAddresses, local_configuration
from extproc.lab.stack.processes import Process, until
from extproc.lab.stack.sidecar import SidecarProcess
from extproc.lab.stack.stand_in_fleet import StandInFleet
from extproc.lab.stack.valkey import Valkey
from tests.e2e.forked import ForkedFileSidecar, ForkedFleet
from tests.e2e.scene import CHAT, MODEL, Json, Options, Scene, chat
from tests.e2e.test_prefix_cache import decided, readings_are_idle, text
from tests.extent import PATIENCE


@dataclass
class Processes:
    """The processes of several gateways, which may outlive an event loop."""

    options: Options
    directory: Path
    valkey: Valkey
    replicas: StandInFleet
    sidecars: list[SidecarProcess] = field(default_factory=list)
    envoys: list[Envoy] = field(default_factory=list)

    @classmethod
    async def start(
        cls,
        directory: Path,
        options: Options,
        number: int,
        valkey: Valkey | None = None,
        keys: Sequence[str] = (),
    ) -> Processes:
        """Start all. `keys` has the key of each gateway if they do not share one."""
        replicas = ForkedFleet(options.replicas, directory, options.replica_arguments)
        processes = cls(options, directory, valkey or Valkey(directory), replicas)
        try:
            await asyncio.gather(processes.valkey.start(), replicas.start())
            for place in range(number):
                processes._add(place, keys[place] if keys else "extproc")
            await asyncio.gather(*(one.start() for one in processes.sidecars))
            for place in range(number):
                processes._add_envoy(place)
            await asyncio.gather(*(one.start() for one in processes.envoys))
        except BaseException:
            await processes.kill()
            raise
        return processes

    async def kill(self) -> None:
        """Kill all processes."""
        all_of_them: list[Process] = [*self.envoys, *self.sidecars, self.replicas, self.valkey]
        await asyncio.gather(*(one.kill() for one in all_of_them))

    def _add(self, place: int, key: str) -> None:
        own_directory = self.directory / f"gateway-{place}"
        own_directory.mkdir()
        shared = ["--shared-state", self.valkey.url, "--shared-state-key", key]
        self.sidecars.append(
            ForkedFileSidecar(
                self.options.models(self.replicas.addresses),
                own_directory,
                arguments=[*shared, *self.options.sidecar_arguments],
            )
        )

    def _add_envoy(self, place: int) -> None:
        addresses = EnvoyAddresses(
            self.sidecars[place].listen, [*self.replicas.addresses, *self.options.more_endpoints]
        )
        config = local_configuration(envoy_configuration(self.options.config), addresses)
        self.options.change_config(config)
        self.envoys.append(Envoy(config, self.directory / f"gateway-{place}"))


@dataclass(frozen=True)
class Gateways:
    """Gateways with a client session for each."""

    processes: Processes
    scenes: Sequence[Scene]

    @property
    def replicas(self) -> StandInFleet:
        """The replicas behind all gateways."""
        return self.processes.replicas

    async def agree(self) -> dict[str, int]:
        """Wait until all sidecars know what the replicas hold, and return it."""
        found: Any = None

        async def agree() -> bool:
            nonlocal found
            before = await self.replicas.inflight()
            known = [await inflight_fleet(scene.sidecar) for scene in self.scenes]
            after = await self.replicas.inflight()
            found = before, known, after
            return before == after and all(one == before for one in known)

        try:
            await until(agree, PATIENCE, "the sidecars to know what the replicas hold")
        except TimeoutError as error:
            raise AssertionError(f"{error}: replicas, sidecars, replicas {found}") from None
        held: dict[str, int] = found[0]
        return held

    async def know_the_same_blocks(self) -> None:
        """Wait until the prefix indexes of all sidecars have the same number of blocks."""

        async def same() -> bool:
            first, *others = [await indexed_blocks(scene.sidecar) for scene in self.scenes]
            return first > 0 and all(one == first for one in others)

        await until(same, PATIENCE, "equal prefix indexes")


async def shared_state(sidecar: SidecarProcess) -> Json:
    """Return the shared state of `/debug/state`."""
    _, text = await sidecar.get("/debug/state")
    found: Json = json.loads(text)["shared_state"]
    return found


async def inflight_fleet(sidecar: SidecarProcess) -> dict[str, int]:
    """Return the requests of all sidecars by address, without idle endpoints."""
    endpoints = [e for model in (await sidecar.state()).values() for e in model["endpoints"]]
    return {e["address"]: e["inflight_fleet"] for e in endpoints if e["inflight_fleet"]}


async def indexed_blocks(sidecar: SidecarProcess) -> float:
    """Return the blocks of all endpoints in the prefix index."""
    _, text = await sidecar.get("/metrics")
    samples = [line for line in text.splitlines() if line.startswith("extproc_prefix_index_blocks")]
    return sum(float(line.rpartition(" ")[2]) for line in samples)


@asynccontextmanager
async def sessions(processes: Processes) -> AsyncIterator[Gateways]:
    """Open a client session to each gateway."""
    async with AsyncExitStack() as cleanup:
        scenes = []
        for envoy, sidecar in zip(processes.envoys, processes.sidecars, strict=True):
            # No connection limit: requests must not queue in the client.
            session = aiohttp.ClientSession(
                envoy.url,
                connector=aiohttp.TCPConnector(limit=0),
                timeout=aiohttp.ClientTimeout(total=processes.options.patience),
            )
            await cleanup.enter_async_context(session)
            scenes.append(Scene(envoy, sidecar, processes.replicas, session))
        yield Gateways(processes, scenes)


def prompts(name: str, number: int, model: str = MODEL) -> list[Json]:
    """Return requests with long prompts that have nothing in common."""
    return [chat(text(f"{name} {i}", 8_000), model=model) for i in range(number)]


async def hits(scene: Scene, bodies: list[Json]) -> list[float]:
    """Send requests when the replicas are idle, and return the predicted hits."""
    await readings_are_idle(scene.sidecar)
    return [decision["predicted_hit"] for decision in await decided(scene, bodies)]


async def hold(
    scene: Scene, cleanup: AsyncExitStack, model: str = MODEL, user: str = "hello"
) -> aiohttp.ClientResponse:
    """Begin a stream that lasts until the end of the context."""
    body = {**chat(user, model=model, tokens=4_000), "stream": True}
    response = await cleanup.enter_async_context(scene.session.post(CHAT, json=body))
    assert response.status == 200
    return response
