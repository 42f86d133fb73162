"""Changes of endpoints on Kubernetes, which no request may notice."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack
from functools import partial

from extproc.lab.api_server.builders import endpoint_slice
from extproc.lab.stack.processes import until
from tests.e2e.cluster_scene import (
    FROM_SERVICE,
    NAMESPACE,
    READY,
    SERVICE,
    STARTING,
    TERMINATING,
    ClusterOptions,
    Deploy,
    statuses,
)
from tests.e2e.scene import Json, chat
from tests.extent import PATIENCE, extent


async def test_endpoints_that_churn_under_load_fail_no_request(deploy: Deploy) -> None:
    scene = await deploy(ClusterOptions(replicas=5))
    addresses = scene.replicas.addresses
    async with scene.load() as responses:
        for turn in range(extent(5, 10)):
            removed = turn % 5
            await scene.remove(removed)
            await scene.routes_to(*(i for i in range(5) if i != removed))
            before = await scene.requests_to(removed)
            await asyncio.sleep(0.3)
            assert await scene.requests_to(removed) == before
            await scene.api.apply(scene.pod(removed))
            await scene.routes_to(*range(5))
    assert statuses(responses) == {200}
    assert {address for _, address in responses} == set(addresses)
    log = await scene.access_log(responses.total())
    assert {line["route"] for line in log} == {"chosen"}
    await scene.agree_on_inflight(0)


async def test_a_rolling_restart_of_all_pods_fails_no_request(deploy: Deploy) -> None:
    """Replace pods like a Deployment: a new pod is ready before an old one terminates."""
    scene = await deploy(ClusterOptions(replicas=8, pods=4))
    async with scene.load() as responses:
        for old in range(4):
            new = old + 4
            await scene.api.apply(scene.pod(new, STARTING))
            await asyncio.sleep(0.1)
            await scene.api.apply(scene.pod(new))
            await scene.routes_to(*range(old, new + 1))
            await scene.api.apply(scene.pod(old, TERMINATING))
            await scene.routes_to(*range(old + 1, new + 1))
            # Requests to the old pod end long before its grace period.
            before = await scene.requests_to(old)
            await scene.remove(old)
            await asyncio.sleep(0.2)
            assert await scene.requests_to(old) == before
    assert statuses(responses) == {200}
    assert {line["route"] for line in await scene.access_log(responses.total())} == {"chosen"}


async def test_a_terminating_pod_keeps_its_streams_and_gets_no_new_ones(deploy: Deploy) -> None:
    scene = await deploy(ClusterOptions(replicas=2, replica_arguments=("--time-scale", "1")))
    async with AsyncExitStack() as cleanup:
        streams = [
            await cleanup.enter_async_context(scene.stream(chat(f"user {i}", tokens=40)))
            for i in range(6)
        ]
        await scene.agree_on_inflight(6)
        await scene.api.apply(scene.pod(0, TERMINATING))
        await scene.routes_to(1)
        leaving = scene.replicas.addresses[0]
        held = (await scene.sidecar.inflight())[leaving]
        assert held > 0
        endpoints = (await scene.sidecar.state())["llama"]["endpoints"]
        (draining,) = (e for e in endpoints if e["state"] == "draining")
        assert (draining["address"], draining["name"]) == (leaving, f"{NAMESPACE}/vllm-0")
        for i in range(4):
            assert (await scene.send(chat(f"new {i}"))).replica == scene.replicas.addresses[1]
        for stream in streams:
            assert (await stream.read()).endswith(b"data: [DONE]\n\n")
    await scene.agree_on_inflight(0)


async def test_loopback_endpoints_are_refused_unless_allowed(deploy: Deploy) -> None:
    scene = await deploy(ClusterOptions(replicas=1, sidecar_arguments=()))
    assert await scene.ready() == set()
    reply = await scene.send(chat("hello"))
    assert (reply.status, reply.error()["code"]) == (503, "no_endpoints")
    source = f"service {NAMESPACE}/{SERVICE}"
    counted = await scene.metric(
        "extproc_endpoints_refused_total", reason="loopback", source=source
    )
    assert counted == 1


async def test_a_thousand_endpoints_and_fifty_models_do_not_affect_a_loaded_model(
    deploy: Deploy,
) -> None:
    """Discover addresses of a test network, which never get requests."""
    others = [
        {"name": f"other-{i}", "service": {**FROM_SERVICE["service"], "name": f"other-{i}"}}
        for i in range(49)
    ]
    scene = await deploy(ClusterOptions(replicas=2, more_models=others))

    def slices(ready: int) -> list[Json]:
        return [
            endpoint_slice(
                "other-0",
                NAMESPACE,
                f"other-0-{part}",
                [
                    (f"198.18.{part}.{i}", f"pod-{part}-{i}", READY if i <= ready else STARTING)
                    for i in range(1, 101)
                ],
            )
            for part in range(12)
        ]

    async def has(model: str, count: int) -> bool:
        return await scene.metric("extproc_endpoints", model=model, state="ready") == count

    async with scene.load(clients=8) as responses:
        began = time.monotonic()
        await scene.api.apply(*slices(ready=100))
        await until(lambda: has("other-0", 1200), PATIENCE, "1,200 endpoints")
        found = time.monotonic() - began
        await scene.api.apply(*slices(ready=90))
        await until(lambda: has("other-0", 1080), PATIENCE, "1,080 endpoints")
        for i in range(1, 49):
            pod = [(f"198.18.99.{i}", f"pod-{i}", READY)]
            await scene.api.apply(endpoint_slice(f"other-{i}", NAMESPACE, f"other-{i}", pod))
        for i in range(1, 49):
            await until(partial(has, f"other-{i}", 1), PATIENCE, f"an endpoint of other-{i}")
    assert statuses(responses) == {200}
    print(f"1,200 endpoints in 12 slices were found after {found:.2f} s")
