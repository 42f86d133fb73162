"""For hours: endpoints come and go each second, the document changes every half minute."""

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
"""For a short look at a long test."""

PODS = 5
RELOAD_SECONDS = 30
WARM_UP = 1 / 3
"""The share of the time in which memory may still find its level."""
SLOPE_PER_HOUR = 2**20
LEVEL_SECONDS = 1_200

pytestmark = pytest.mark.soak


async def churn(scene: ClusterScene) -> None:
    """Each second a pod goes or comes back, for ever."""
    for turn in count():
        pod = turn // 2 % PODS
        await (scene.api.apply(scene.pod(pod)) if turn % 2 else scene.remove(pod))
        await asyncio.sleep(1)


async def reload(scene: ClusterScene) -> None:
    """The strategy changes, for ever."""
    for turn in count():
        await asyncio.sleep(RELOAD_SECONDS)
        strategy = ("LeastLoad", "PrefixCache", "PrefixHash")[turn % 3]
        await scene.configure(ClusterOptions(strategy=strategy).document())


async def weigh(scene: ClusterScene, samples: list[tuple[float, int]]) -> None:
    """Notes the sidecar's memory, for ever."""
    while True:
        samples.append((time.monotonic(), scene.sidecar.resident_bytes()))
        await asyncio.sleep(1)


def slope(samples: list[tuple[float, int]]) -> float:
    """Bytes an hour by which memory grew after the warm-up."""
    rest = samples[int(len(samples) * WARM_UP) :]
    moments, sizes = zip(*rest, strict=True)
    return float(linear_regression(moments, sizes).slope * 3600)


@pytest.mark.parametrize("seconds", [1_800, 7_200], ids=["30m", "2h"])
async def test_soak(deploy: Deploy, seconds: int, report: Report) -> None:
    """No stream fails or is cut, and memory grows by less than 1 MB an hour after the warm-up."""
    seconds = int(SOAK_SECONDS or seconds)
    scene = await deploy(ClusterOptions(replicas=PODS, replica_arguments=PACE))
    report.tried(
        f"{seconds} s of {CLIENTS} streams, a pod gone or back each second, a reload every "
        f"{RELOAD_SECONDS} s"
    )
    samples: list[tuple[float, int]] = []
    async with streaming(scene) as streams:
        troubles = [
            asyncio.create_task(trouble)
            for trouble in (churn(scene), reload(scene), weigh(scene, samples))
        ]
        await asyncio.sleep(seconds)
        ended = [trouble.done() for trouble in troubles]
        for trouble in troubles:
            trouble.cancel()
        await asyncio.gather(*troubles, return_exceptions=True)
    grows = slope(samples)
    report.lost(
        failed=streams.failed,
        cut=streams.cut,
        what=f"of {streams.whole} streams; memory {samples[-1][1] / 2**20:.1f} MiB, growing by "
        f"{grows / 2**20:.2f} MiB an hour",
    )
    assert not any(ended)
    assert streams.outcomes.keys() == {"whole"}
    assert complaints(scene.sidecar) == []
    await scene.agree_on_inflight(0)
    # In less time memory has not found its level.
    assert grows < SLOPE_PER_HOUR or seconds < LEVEL_SECONDS
