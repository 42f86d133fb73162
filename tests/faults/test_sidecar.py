"""A sidecar that dies or hangs: no request fails, and no stream ends."""

from __future__ import annotations

import asyncio
import signal
import time
from collections import Counter

import pytest

from tests.e2e.scene import Launch, Options, Scene, chat
from tests.extent import PATIENCE, extent, limit
from tests.faults.canary import Canary
from tests.faults.report import Report
from tests.faults.streams import CLIENTS, PACE, streaming

KILLS = extent(2, full=12)
KILL_SECONDS = extent(2, full=5)
"""The time from one kill to the next."""

FROZEN_SECONDS = extent(3, full=10)
MESSAGE_TIMEOUT = 2
"""Seconds that a request waits, once, for a sidecar that hangs; from envoy.yaml."""


async def seconds_to_decision(scene: Scene, within: float) -> float:
    """Return the seconds until the sidecar decides a request.

    Only the sidecar answers 404 to an unknown model.
    """
    began = time.monotonic()
    while (await scene.send(chat("hello", model="unknown", tokens=1))).status != 404:
        assert time.monotonic() - began < within, "no request is decided"
    return time.monotonic() - began


@pytest.mark.parametrize("more", [0, 1], ids=["one model", "two models"])
async def test_sidecar_sigkill(launch: Launch, more: int, report: Report) -> None:
    """No stream fails or is cut; decisions resume within 1 s; no spoofed address is reached."""
    others = [{"name": "other", "endpoints": ["127.0.0.1:9"]}] * more
    scene = await launch(Options(replica_arguments=PACE, more_models=others))
    report.tried(f"{KILLS} kills, one every {KILL_SECONDS:g} s, under {CLIENTS} streams")
    resumed = []
    async with Canary().listening() as canary:
        async with streaming(scene, headers={"x-target-endpoint": canary.address}) as streams:
            for _ in range(KILLS):
                await scene.sidecar.kill()
                await asyncio.sleep(KILL_SECONDS / 2)
                await scene.sidecar.start()
                resumed.append(await seconds_to_decision(scene, PATIENCE))
                await asyncio.sleep(KILL_SECONDS / 2)
        report.lost(
            failed=streams.failed,
            cut=streams.cut,
            canary_connections=canary.connections,
            what=f"of {streams.whole} streams; decisions resumed within {max(resumed):.2f} s",
        )
        assert canary.connections == 0
    assert streams.outcomes.keys() == {"whole"}
    assert max(resumed) < limit(1)
    routes = Counter(line["route"] for line in scene.envoy.access_log())
    assert routes["fallback"] > 0
    await scene.agree_on_inflight(0)


async def test_sidecar_frozen(launch: Launch, report: Report) -> None:
    """Streams continue; new requests wait for message_timeout once, and it recovers by itself."""
    scene = await launch(Options(replica_arguments=PACE))
    report.tried(f"SIGSTOP for {FROZEN_SECONDS:g} s under {CLIENTS} streams, then SIGCONT")
    async with streaming(scene) as streams:
        scene.sidecar.signal(signal.SIGSTOP)
        began = time.monotonic()
        replies = await asyncio.gather(*(scene.send(chat(f"user {i}")) for i in range(10)))
        waited = time.monotonic() - began
        await asyncio.sleep(max(0.0, FROZEN_SECONDS - waited))
        scene.sidecar.signal(signal.SIGCONT)
        resumed = await seconds_to_decision(scene, PATIENCE)
    report.lost(
        failed=streams.failed + sum(reply.status != 200 for reply in replies),
        cut=streams.cut,
        what=f"of {streams.whole} streams; new requests waited at most "
        f"{streams.slowest_begin:.2f} s; decisions {resumed:.2f} s after SIGCONT",
    )
    assert {reply.status for reply in replies} == {200}
    assert streams.outcomes.keys() == {"whole"}
    assert streams.slowest_begin < limit(MESSAGE_TIMEOUT + 1)
    await scene.agree_on_inflight(0)
