"""Edits of the ConfigMap while requests run."""

from __future__ import annotations

import json
from functools import partial

from extproc.lab.api_server.builders import config_map, inference_pool, pod
from extproc.lab.stack.processes import until
from tests.e2e.cluster_scene import (
    CONFIG_MAP,
    FROM_SERVICE,
    NAMESPACE,
    ClusterOptions,
    ClusterScene,
    Deploy,
    statuses,
)
from tests.e2e.scene import Json, chat
from tests.extent import PATIENCE

RELOADS = "extproc_config_reloads_total"


def document(strategy: str, factor: int = 125) -> Json:
    balancing = {"strategy": strategy, "prefixHash": {"meanLoadFactor": factor}}
    return {"models": [{"name": "llama", **FROM_SERVICE, "loadBalancing": balancing}]}


async def reached(scene: ClusterScene, result: str, count: int) -> bool:
    return await scene.metric(RELOADS, result=result) >= count


async def events(scene: ClusterScene) -> list[tuple[str, str]]:
    found = await scene.api.objects("events", NAMESPACE)
    return [(event["type"], event["reason"]) for event in found]


async def test_a_hundred_edits_under_load_fail_no_request(deploy: Deploy) -> None:
    scene = await deploy(ClusterOptions(replicas=3))
    async with scene.load() as responses:
        for edit in range(100):
            strategy = ("PrefixHash", "LeastLoad", "RoundRobin", "Random")[edit % 4]
            await scene.configure(document(strategy, 100 + edit))
        await until(partial(strategy_is, scene, "Random"), PATIENCE, "the last edit to be in force")
        await scene.configure(document("PrefixHash"))
        await until(partial(strategy_is, scene, "PrefixHash"), PATIENCE, "one more edit")
    assert statuses(responses) == {200}
    assert {line["route"] for line in await scene.access_log(responses.total())} == {"chosen"}
    # The sidecar may skip edits in quick succession, but refuses none.
    assert await scene.metric(RELOADS, result="failure") == 0
    assert await events(scene) == []
    await scene.agree_on_inflight(0)


async def strategy_is(scene: ClusterScene, strategy: str) -> bool:
    return bool((await scene.sidecar.state())["llama"]["strategy"] == strategy)


async def test_a_refused_document_creates_an_event_and_the_last_good_one_stays(
    deploy: Deploy,
) -> None:
    scene = await deploy(ClusterOptions(replicas=2))
    await scene.configure({"models": [{"name": "llama", **FROM_SERVICE, "strategy": "Typo"}]})
    await until(partial(reached, scene, "failure", 1), PATIENCE, "the refusal")
    assert await scene.metric("extproc_config_last_reload_successful") == 0
    assert (await scene.send(chat("hello"))).status == 200
    (event,) = await scene.api.objects("events", NAMESPACE)
    assert (event["type"], event["reason"]) == ("Warning", "ModelsRefused")
    assert event["message"].startswith("models[0].strategy: unknown key")
    about = event["involvedObject"]
    assert (about["kind"], about["namespace"], about["name"]) == (
        "ConfigMap",
        NAMESPACE,
        CONFIG_MAP,
    )

    await scene.configure(document("LeastLoad"))
    await until(partial(reached, scene, "success", 2), PATIENCE, "the correction")
    await until(partial(has_events, scene, 2), PATIENCE, "the second event")
    assert await scene.metric("extproc_config_last_reload_successful") == 1
    assert set(await events(scene)) == {("Warning", "ModelsRefused"), ("Normal", "ModelsAccepted")}


async def has_events(scene: ClusterScene, count: int) -> bool:
    return len(await events(scene)) == count


async def test_the_last_good_document_stays_when_the_config_map_is_deleted(deploy: Deploy) -> None:
    scene = await deploy(ClusterOptions(replicas=2))
    await scene.api.delete("ConfigMap", NAMESPACE, CONFIG_MAP)
    await until(
        lambda: "ConfigMap deleted" in scene.sidecar.error_output(), PATIENCE, "the log line"
    )
    assert (await scene.send(chat("hello"))).status == 200
    await scene.configure(document("RoundRobin"))
    await until(partial(strategy_is, scene, "RoundRobin"), PATIENCE, "the new document")
    assert (await scene.sidecar.get("/readyz"))[0] == 200


async def test_a_model_that_moves_to_another_service_is_never_without_endpoints(
    deploy: Deploy,
) -> None:
    scene = await deploy(ClusterOptions(replicas=2, pods=1))
    moved = scene.pod(1)
    moved["metadata"]["labels"]["kubernetes.io/service-name"] = "new"
    await scene.api.apply(moved)
    await scene.api.faults(list_delay=0.5)
    service = {**FROM_SERVICE["service"], "name": "new"}
    async with scene.load(clients=5) as responses:
        await scene.configure({"models": [{"name": "llama", "service": service}]})
        await scene.routes_to(1)
    assert statuses(responses) == {200}
    listings = [r for r in await scene.api.requests() if r["resource"] == "endpointslices"]
    assert {r["namespace"] for r in listings} == {NAMESPACE}


async def test_endpoints_come_from_an_inference_pool(deploy: Deploy) -> None:
    pool = {"inferencePool": {"namespace": NAMESPACE, "name": "llama"}}
    scene = await deploy(ClusterOptions(replicas=2, pods=0, source=pool, start_sidecar=False))
    # Both pods have the same address here, so the pool's ports distinguish the replicas.
    ports = [int(address.rpartition(":")[2]) for address in scene.replicas.addresses]
    await scene.api.apply(
        inference_pool(NAMESPACE, "llama", {"app": "vllm"}, ports),
        pod(NAMESPACE, "vllm-0", {"app": "vllm"}, "127.0.0.1"),
        pod(NAMESPACE, "another", {"app": "other"}, "127.0.0.1"),
        config_map(NAMESPACE, "unrelated", {}),
    )
    await scene.sidecar.start()
    await scene.routes_to(0, 1)
    names = {e["name"] for e in (await scene.sidecar.state())["llama"]["endpoints"]}
    assert names == {f"{NAMESPACE}/vllm-0:{port}" for port in ports}
    assert (await scene.send(chat("hello"))).status == 200
    await scene.api.apply(inference_pool(NAMESPACE, "llama", {"app": "vllm"}, ports[:1]))
    await scene.routes_to(0)
    await scene.api.apply(pod(NAMESPACE, "vllm-0", {"app": "vllm"}, "127.0.0.1", ready=False))
    await scene.routes_to()
    assert (await scene.send(chat("hello"))).error()["code"] == "no_endpoints"


async def test_a_refused_watch_shows_in_state_and_metrics(deploy: Deploy) -> None:
    """The RoleBinding is gone: changes no longer arrive, and the sidecar says so."""
    scene = await deploy(ClusterOptions(replicas=1))
    await scene.api.faults(forbidden=["configmaps"])
    await scene.api.drop_watches()

    async def age() -> float:
        _, text = await scene.sidecar.get("/debug/state")
        state = json.loads(text)["configuration"]
        assert state["source"] == f"ConfigMap {NAMESPACE}/{CONFIG_MAP}"
        assert state["last_reload_successful"] is True
        return float(state["age_seconds"])

    async def is_old() -> bool:
        watches = {"resource": "configmaps", "result": "403"}
        failed = await scene.metric("extproc_discovery_watches_total", **watches)
        return failed >= 1 and await age() > 2

    await until(is_old, PATIENCE, "the age to grow")
    assert await scene.metric("extproc_config_age_seconds") > 2
    assert await scene.metric("extproc_discovery_age_seconds", model="llama") < PATIENCE
    assert (await scene.sidecar.get("/readyz"))[0] == 200
    await scene.api.faults(forbidden=[])
    await scene.configure(document("Random"))
    await until(partial(strategy_is, scene, "Random"), PATIENCE, "the change to be in force")
    assert await age() < PATIENCE
