"""ORCA load reports: the sidecar reads them from response headers and removes them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from tests.e2e.scene import Json, Launch, Options, Scene, chat, processing_modes

REPORT = "endpoint-load-metrics"
ASK = "endpoint-load-metrics-format"

# Scrapes are so rare that any newer reading came from a load report.
RARELY = {"intervalSeconds": 60, "idleIntervalSeconds": 60, "staleAfterSeconds": 600}


@dataclass(frozen=True)
class Reporting(Options):
    """One replica and a strategy that reads its signals."""

    replicas: int = 1
    strategy: str = "LeastQueue"
    replica_arguments: Sequence[str] = ("--time-scale", "200")

    def models(self, addresses: Sequence[str]) -> Json:
        document = super().models(addresses)
        document["models"][0]["loadBalancing"]["signals"] = RARELY
        return document


def options(*, headers_sent: bool = True, **others: Any) -> Reporting:
    def changed(config: Json) -> None:
        for modes in processing_modes(config):
            modes["response_header_mode"] = "SEND" if headers_sent else "SKIP"

    return Reporting(change_config=changed, **others)


async def reported(scene: Scene, headers: Mapping[str, str] | None = None) -> str | None:
    """Send a request and return the load report that reaches its client."""
    reply = await scene.send(chat("hello"), headers=headers)
    assert reply.status == 200
    return reply.headers.get(REPORT)


async def age(scene: Scene) -> float:
    """Return the age of the replica's last reading in seconds."""
    (endpoint,) = (await scene.sidecar.state())["llama"]["endpoints"]
    seconds: float = endpoint["signals"]["age_seconds"]
    return seconds


@pytest.mark.parametrize("config", ["envoy.yaml", "endpoint-picker.yaml"])
async def test_reports_are_read_and_do_not_reach_the_client(
    launch: Launch, config: str, every_envoy: str
) -> None:
    scene = await launch(options(config=config))
    # The first response shows the sidecar that Envoy sends it response headers. The sidecar
    # therefore requests a report with the second.
    assert await reported(scene) is None
    await asyncio.sleep(0.5)
    assert await age(scene) >= 0.5
    assert await reported(scene) is None
    assert await age(scene) < 0.5
    # A streamed response has no report and passes unchanged.
    async with scene.stream(chat("hello", tokens=5)) as response:
        assert REPORT not in response.headers
        assert (await response.read()).endswith(b"data: [DONE]\n\n")


async def test_reports_that_the_client_requests_reach_it_in_its_format(launch: Launch) -> None:
    scene = await launch(options())
    for wanted in ("TEXT", "JSON", "JSON"):
        report = await reported(scene, {ASK: wanted})
        assert report is not None
        assert report.startswith(wanted)
    assert await age(scene) < 0.5
    # The servers do not support this format, so the client gets no report.
    assert await reported(scene, {ASK: "BIN"}) is None


async def test_reports_are_not_requested_without_response_headers(launch: Launch) -> None:
    # The sidecar could not remove such a report, which would reach the client.
    scene = await launch(options(headers_sent=False))
    assert [await reported(scene) for _ in range(3)] == [None] * 3
