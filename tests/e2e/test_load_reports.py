"""Load reports in answers (ORCA): heard where Envoy shows answers, and kept from clients."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from tests.e2e.scene import Json, Launch, Options, Scene, chat, processing_modes

REPORT = "endpoint-load-metrics"
ASK = "endpoint-load-metrics-format"

# So rarely that what is younger came with an answer.
SELDOM = {"intervalSeconds": 60, "idleIntervalSeconds": 60, "staleAfterSeconds": 600}


@dataclass(frozen=True)
class Reporting(Options):
    """One replica, whose signals a strategy reads."""

    replicas: int = 1
    strategy: str = "LeastQueue"
    replica_arguments: Sequence[str] = ("--time-scale", "200")

    def models(self, addresses: Sequence[str]) -> Json:
        document = super().models(addresses)
        document["models"][0]["loadBalancing"]["signals"] = SELDOM
        return document


def options(*, shown: bool = True, **others: Any) -> Reporting:
    def changed(config: Json) -> None:
        for modes in processing_modes(config):
            modes["response_header_mode"] = "SEND" if shown else "SKIP"

    return Reporting(change_config=changed, **others)


async def reported(scene: Scene, headers: Mapping[str, str] | None = None) -> str | None:
    """Sends a request; the report that reaches its client."""
    reply = await scene.send(chat("hello"), headers=headers)
    assert reply.status == 200
    return reply.headers.get(REPORT)


async def age(scene: Scene) -> float:
    """Seconds since the replica said what waits."""
    (endpoint,) = (await scene.sidecar.state())["llama"]["endpoints"]
    seconds: float = endpoint["signals"]["age_seconds"]
    return seconds


@pytest.mark.parametrize("config", ["envoy.yaml", "endpoint-picker.yaml"])
async def test_are_heard_and_do_not_reach_the_client(
    launch: Launch, config: str, every_envoy: str
) -> None:
    scene = await launch(options(config=config))
    # The first answer shows that answers are shown; so the second is asked for.
    assert await reported(scene) is None
    await asyncio.sleep(0.5)
    assert await age(scene) >= 0.5
    assert await reported(scene) is None
    assert await age(scene) < 0.5
    # A stream carries none, and passes as ever.
    async with scene.stream(chat("hello", tokens=5)) as response:
        assert REPORT not in response.headers
        assert (await response.read()).endswith(b"data: [DONE]\n\n")


async def test_that_the_client_wants_reach_it_as_it_wants_them(launch: Launch) -> None:
    scene = await launch(options())
    for wanted in ("TEXT", "JSON", "JSON"):
        report = await reported(scene, {ASK: wanted})
        assert report is not None
        assert report.startswith(wanted)
    assert await age(scene) < 0.5
    # A format that nobody gives is none of the client's loss.
    assert await reported(scene, {ASK: "BIN"}) is None


async def test_are_not_asked_for_where_nobody_would_hear_them(launch: Launch) -> None:
    # A report that was asked for and not taken away would reach the client.
    scene = await launch(options(shown=False))
    assert [await reported(scene) for _ in range(3)] == [None] * 3
