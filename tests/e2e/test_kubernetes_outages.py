"""The API server fails in every way it can; requests notice nothing, and changes arrive after."""

from __future__ import annotations

import asyncio
import os
import time
from functools import partial

import pytest

from extproc.lab.cluster import config_map
from extproc.lab.processes import until
from tests.e2e.cluster_scene import NAMESPACE, ClusterOptions, ClusterScene, Deploy, statuses
from tests.e2e.scene import chat

# `make test-outages` asks for a whole minute.
OUTAGE_SECONDS = float(os.environ.get("EXTPROC_OUTAGE_SECONDS", "4"))
CONVERGENCE_SECONDS = 35

DOWN = [{"listening": False}, {"frozen": True}, {"failing": 503}, {"forbidden": ["endpointslices"]}]
UP = {"listening": True, "frozen": False, "failing": 0, "forbidden": []}


@pytest.mark.parametrize("fault", DOWN, ids=lambda fault: next(iter(fault)))
async def test_an_api_server_that_is_away_fails_no_request(
    deploy: Deploy, fault: dict[str, object]
) -> None:
    scene = await deploy(ClusterOptions(replicas=3, pods=2))
    async with scene.load() as answers:
        await scene.api.faults(**fault)
        await scene.api.drop_watches()
        # What happens meanwhile is heard of later; the first pod is still there.
        await scene.api.apply(scene.pod(2))
        before = await scene.metric("extproc_discovery_age_seconds", model="llama")
        await asyncio.sleep(OUTAGE_SECONDS)
        age = await scene.metric("extproc_discovery_age_seconds", model="llama")
        assert age >= before + OUTAGE_SECONDS - 1
        assert await scene.ready() == set(scene.replicas.addresses[:2])
        status, _ = await scene.sidecar.get("/readyz")
        assert status == 200
        await scene.api.faults(**UP)
        began = time.monotonic()
        await scene.routes_to(0, 1, 2, seconds=CONVERGENCE_SECONDS)
        took = time.monotonic() - began
        assert await scene.metric("extproc_discovery_age_seconds", model="llama") < 2
    assert statuses(answers) == {200}
    assert {line["route"] for line in await scene.access_log(answers.total())} == {"chosen"}
    print(f"{answers.total()} requests; caught up {took:.1f} s after the API server's return")


async def test_an_expired_version_costs_one_list_and_never_an_empty_set(deploy: Deploy) -> None:
    scene = await deploy(ClusterOptions(replicas=2))

    async def count(what: str, result: str) -> float:
        return await scene.metric(
            f"extproc_discovery_{what}_total", resource="endpointslices", result=result
        )

    async def expired(times: int) -> bool:
        return await count("watches", "expired") == times

    async def both_watch() -> bool:
        return await scene.api.open_watches() == 2

    async with scene.load() as answers:
        for times in range(1, 4):
            await until(both_watch, 10, "ConfigMap and slices to be watched")
            await asyncio.sleep(1)
            await scene.api.apply(config_map(NAMESPACE, "unrelated", {"turn": str(times)}))
            await scene.api.compact()
            await scene.api.drop_watches(abort=True)
            await until(partial(expired, times), 10, "the version to expire")
    assert statuses(answers) == {200}
    assert {address for _, address in answers} == set(scene.replicas.addresses)
    assert await count("lists", "ok") == 1 + 3


async def test_a_watch_that_fell_silent_is_given_up_in_time(deploy: Deploy) -> None:
    """A half-open connection: nothing comes, not even its end."""
    scene = await deploy(ClusterOptions(replicas=3, pods=2))
    async with scene.load(clients=2) as answers:
        await scene.api.faults(silent_watches=True)
        await scene.api.apply(scene.pod(2))
        began = time.monotonic()
        await scene.routes_to(0, 1, 2, seconds=CONVERGENCE_SECONDS + 5)
        print(f"noticed after {time.monotonic() - began:.1f} s")
    assert statuses(answers) == {200}
    assert await scene.metric(
        "extproc_discovery_watches_total", resource="endpointslices", result="unreachable"
    )


async def test_a_sidecar_that_starts_before_the_api_server_lets_envoy_fall_back(
    deploy: Deploy,
) -> None:
    scene = await deploy(ClusterOptions(replicas=2, start_sidecar=False))
    await scene.api.faults(listening=False)
    scene.sidecar.spawn()
    await until(lambda: answers_admin(scene), 10, "the admin port")
    async with scene.load(clients=5) as answers:
        await asyncio.sleep(1)
        status, why = await scene.sidecar.get("/readyz")
        assert status == 503
        assert why.startswith("ConfigMap inference/extproc-models: ")
        assert {line["route"] for line in scene.envoy.access_log()} == {"fallback"}
        await scene.api.faults(listening=True)
        await until(scene.sidecar.is_ready, CONVERGENCE_SECONDS, "the sidecar to be ready")
        await asyncio.sleep(0.5)
    assert statuses(answers) == {200}
    assert (await scene.send(chat("hello"))).status == 200
    lines = await scene.access_log(answers.total() + 1)
    assert lines[-1]["route"] == "chosen"


async def answers_admin(scene: ClusterScene) -> bool:
    try:
        status, _ = await scene.sidecar.get("/healthz")
    except OSError:
        return False
    return status == 200
