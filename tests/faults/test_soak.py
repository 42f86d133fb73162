"""Hours of streams while endpoints change each second, and the document every half minute."""

from __future__ import annotations

import asyncio
import os
import time
from itertools import count
from statistics import linear_regression

import pytest

from tests.e2e.cluster_scene import ClusterOptions, ClusterScene, Deploy
from tests.faults.inside_sidecar import complaints
from tests.faults.report import Report
from tests.faults.streams import CLIENTS, PACE, streaming

SOAK_SECONDS = os.environ.get("EXTPROC_SOAK_SECONDS") or None
"""A shorter duration, to try the tests out."""

PODS = 5
RELOAD_SECONDS = 30
WARM_UP = 1 / 3
"""The share of the duration in which memory may still grow freely."""
SLOPE_PER_HOUR = 2**20
SETTLE_SECONDS = 1_200

pytestmark = pytest.mark.soak


async def churn(scene: ClusterScene) -> None:
    """Remove a pod or bring it back each second, until canceled."""
    for turn in count():
        pod = turn // 2 % PODS
        await (scene.api.apply(scene.pod(pod)) if turn % 2 else scene.remove(pod))
        await asyncio.sleep(1)


async def reload(scene: ClusterScene) -> None:
    """Change the strategy every `RELOAD_SECONDS`, until canceled."""
    for turn in count():
        await asyncio.sleep(RELOAD_SECONDS)
        strategy = ("LeastLoad", "PrefixCache", "PrefixHash")[turn % 3]
        await scene.configure(ClusterOptions(strategy=strategy).document())


async def sample_memory(scene: ClusterScene, samples: list[tuple[float, int]]) -> None:
    """Sample the sidecar's memory each second, until canceled."""
    while True:
        samples.append((time.monotonic(), scene.sidecar.resident_bytes()))
        await asyncio.sleep(1)


def slope(samples: list[tuple[float, int]]) -> float:
    """Return the growth of memory after the warm-up, in bytes an hour."""
    rest = samples[int(len(samples) * WARM_UP) :]
    moments, sizes = zip(*rest, strict=True)
    return float(linear_regression(moments, sizes).slope * 3600)


@pytest.mark.parametrize("seconds", [1_800, 7_200], ids=["30m", "2h"])
async def test_soak(deploy: Deploy, seconds: int, report: Report) -> None:
    """No stream fails or is cut, and memory grows by less than 1 MB an hour after the warm-up."""
    seconds = int(SOAK_SECONDS or seconds)
    scene = await deploy(ClusterOptions(replicas=PODS, replica_arguments=PACE))
    report.tried(
        f"{seconds} s of {CLIENTS} streams, a pod removed or added each second, a reload every "
        f"{RELOAD_SECONDS} s"
    )
    samples: list[tuple[float, int]] = []
    async with streaming(scene) as streams:
        tasks = [
            asyncio.create_task(work)
            for work in (churn(scene), reload(scene), sample_memory(scene, samples))
        ]
        await asyncio.sleep(seconds)
        ended = [task.done() for task in tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    growth = slope(samples)
    report.lost(
        failed=streams.failed,
        cut=streams.cut,
        what=f"of {streams.whole} streams; memory {samples[-1][1] / 2**20:.1f} MiB, growing by "
        f"{growth / 2**20:.2f} MiB an hour",
    )
    assert not any(ended)
    assert streams.outcomes.keys() == {"whole"}
    assert complaints(scene.sidecar) == []
    await scene.agree_on_inflight(0)
    # In less time, memory has not settled.
    assert growth < SLOPE_PER_HOUR or seconds < SETTLE_SECONDS
