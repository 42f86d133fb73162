"""A rolling update of all gateways under conversations: the engines' caches stay in use."""

from __future__ import annotations

import asyncio
from math import nan
from pathlib import Path

import pytest

from extproc.lab.demo.chat import Workload, drive
from extproc.lab.stack.processes import until
from tests.e2e.gateways import Processes, sessions, shared_state
from tests.e2e.scene import MODEL
from tests.e2e.test_prefix_cache import FrequentScrapes, cached
from tests.extent import FULL, PATIENCE, extent
from tests.faults.report import Report

GATEWAYS = 3
WORKLOAD = Workload(
    users=extent(24, full=30),
    turns=extent(8, full=16),
    system_prompts=6,
    message_words=120,
    answer_tokens=20,
)
STEADY_SECONDS = extent(1, full=3)
LOST = 0.1
"""Most of the hit rate that may be lost."""


@pytest.mark.timed
async def test_rolling_update_of_all_gateways(tmp_path: Path, report: Report) -> None:
    """Each gateway leaves the load balancer, its sidecar restarts, and it returns."""
    options = cached(FrequentScrapes, replica_arguments=("--time-scale", "4"))
    processes = await Processes.start(tmp_path, options, GATEWAYS)
    report.tried(
        f"a restart of {GATEWAYS} sidecars, one after the other, under {WORKLOAD.users} users"
    )
    try:
        async with sessions(processes) as gateways:
            urls = [scene.envoy.url for scene in gateways.scenes]
            users = asyncio.create_task(drive(urls, MODEL, WORKLOAD))
            rates = []

            async def rate_since(before: tuple[float, float]) -> tuple[float, float]:
                now = await gateways.replicas.looked_up()
                looked_up = now[1] - before[1]
                # On a slow machine, the users may be done before the last restart.
                rates.append((now[0] - before[0]) / looked_up if looked_up else nan)
                return now

            await until_served(processes, WORKLOAD.users)
            mark = await gateways.replicas.looked_up()
            await asyncio.sleep(STEADY_SECONDS)
            mark = await rate_since(mark)
            for scene in gateways.scenes:
                urls.remove(scene.envoy.url)
                await scene.sidecar.stop()
                await scene.sidecar.start()
                assert (await shared_state(scene.sidecar))["connected"]
                urls.append(scene.envoy.url)
            mark = await rate_since(mark)
            run = await asyncio.wait_for(users, 3 * PATIENCE)
            await rate_since(mark)
    finally:
        await processes.kill()
    before, during, after = rates
    report.lost(
        failed=run.failed(),
        what=f"of {len(run.outcomes)} requests; the engines found {before:.0%} of the prompt "
        f"tokens in their caches before, {during:.0%} during and {after:.0%} after it",
    )
    assert run.failed() == 0
    if FULL:
        assert all(rate > before - LOST for rate in (during, after))


async def until_served(processes: Processes, requests: int) -> None:
    """Wait until the replicas have served so many requests."""

    async def are_served() -> bool:
        found = await processes.replicas.requests()
        return sum(one["total"] for one in found.values()) >= 2 * requests

    await until(are_served, PATIENCE, "the first requests")
