"""No client ever chooses an address: canaries on loopback see no connection."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.e2e.scene import CONFIGS, Launch, Options, Scene, chat


class Canary:
    """A port that nobody may connect to."""

    def __init__(self) -> None:
        self.address = ""
        self.connections = 0

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[Canary]:
        server = await asyncio.start_server(self._met, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with server:
            yield self

    def _met(self, _: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        writer.close()


async def attack(scene: Scene, canary: Canary) -> list[int]:
    """Every way to name the canary; the statuses of the answers."""
    statuses = []
    for name in ("x-target-endpoint", "X-Target-Endpoint", "x-target-endpoint-fallback"):
        for value in (canary.address, f"{canary.address},{canary.address}", f" {canary.address} "):
            for body in (chat("hello"), b"not json", chat("x" * 100_000)):
                reply = await scene.send(body, headers={name: value})
                statuses.append(reply.status)
    twice = [("x-target-endpoint", canary.address), ("x-target-endpoint", canary.address)]
    async with scene.session.post(
        "/v1/chat/completions", json=chat("hello"), headers=twice
    ) as response:
        statuses.append(response.status)
    return statuses


@pytest.mark.parametrize("config", CONFIGS)
async def test_a_spoofed_target_is_never_honoured(launch: Launch, config: str) -> None:
    arguments = ("--time-scale", "100", "--max-model-len", "100000", "--kv-tokens", "200000")
    scene = await launch(Options(config=config, replica_arguments=arguments))
    async with Canary().listening() as canary:
        up = await attack(scene, canary)
        await scene.sidecar.kill()
        down = await attack(scene, canary)
        assert canary.connections == 0
    assert set(up) == {200, 400}
    assert set(down) == ({503} if config == "fail-closed.yaml" else {200, 400})


async def test_a_frozen_sidecar_lets_no_spoofed_target_through(launch: Launch) -> None:
    scene = await launch(Options(replica_arguments=("--time-scale", "100")))
    async with Canary().listening() as canary:
        scene.sidecar.signal(signal.SIGSTOP)
        reply = await scene.send(chat("hello"), headers={"x-target-endpoint": canary.address})
        scene.sidecar.signal(signal.SIGCONT)
        assert reply.status == 200
        assert canary.connections == 0
