"""Changes of the models document take effect without a restart and fail no request."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import AsyncExitStack
from typing import Any

from extproc.lab.stack.processes import until
from extproc.lab.stack.sidecar import FileSidecar
from tests.e2e.scene import Launch, Options, Scene, chat
from tests.extent import PATIENCE

SLOW = ("--time-scale", "1")
QUICK = ("--time-scale", "50")


async def reloads(scene: Scene, result: str) -> float:
    _, metrics = await scene.sidecar.get("/metrics")
    name = f'extproc_config_reloads_total{{result="{result}"}}'
    return next(float(line.split()[1]) for line in metrics.splitlines() if line.startswith(name))


async def rewrite(scene: Scene, document: dict[str, Any], result: str) -> None:
    """Write a document and wait until the sidecar has accepted or refused it."""
    assert isinstance(scene.sidecar, FileSidecar)
    before = await reloads(scene, result)
    scene.sidecar.write_models(document)

    async def seen() -> bool:
        return await reloads(scene, result) > before

    await until(seen, PATIENCE, f"a reload with {result}")


async def test_reloads_under_load_fail_no_request(launch: Launch) -> None:
    scene = await launch(Options(replica_arguments=("--time-scale", "8")))
    stop, statuses = asyncio.Event(), Counter[int]()

    async def client(name: int) -> None:
        while not stop.is_set():
            statuses[(await scene.send(chat(f"client {name}", tokens=10))).status] += 1

    clients = [asyncio.create_task(client(i)) for i in range(20)]
    for strategy in ("LeastLoad", "RoundRobin", "PrefixHash"):
        document = Options(strategy=strategy).models(scene.replicas.addresses)
        await rewrite(scene, document, "success")
        assert (await scene.sidecar.state())["llama"]["strategy"] == strategy
    stop.set()
    await asyncio.gather(*clients)
    assert statuses.keys() == {200}
    await scene.agree_on_inflight(0)
    strategies = Counter(line["strategy"] for line in await scene.access_log(statuses.total()))
    assert strategies.keys() == {"PrefixHash", "LeastLoad", "RoundRobin"}


async def test_a_change_of_strategy_and_endpoints_keeps_the_inflight_counts(launch: Launch) -> None:
    scene = await launch(Options(replica_arguments=SLOW, strategy="RoundRobin"))
    kept, *removed = scene.replicas.addresses
    async with AsyncExitStack() as cleanup:
        for i in range(6):
            await cleanup.enter_async_context(scene.stream(chat(f"user {i}", tokens=60)))
        await scene.agree_on_inflight(6)
        await rewrite(scene, Options(strategy="LeastLoad").models([kept]), "success")
        await scene.agree_on_inflight(6)
        endpoints = (await scene.sidecar.state())["llama"]["endpoints"]
        assert {e["address"]: (e["state"], e["inflight"]) for e in endpoints} == {
            kept: ("ready", 2),
            **dict.fromkeys(removed, ("draining", 2)),
        }
        assert (await scene.send(chat("new"))).replica == kept
    await scene.agree_on_inflight(0)
    assert [e["address"] for e in (await scene.sidecar.state())["llama"]["endpoints"]] == [kept]


async def test_the_last_good_document_stays_after_a_bad_one(launch: Launch) -> None:
    scene = await launch(Options(replica_arguments=QUICK))
    await rewrite(scene, {"models": [{"name": "llama", "strategy": "Typo"}]}, "failure")
    _, metrics = await scene.sidecar.get("/metrics")
    assert "extproc_config_last_reload_successful 0.0" in metrics
    reason = "models[0].strategy: unknown key"
    await until(lambda: reason in scene.sidecar.error_output(), PATIENCE, "the reason in the log")
    assert (await scene.send(chat("hello"))).status == 200

    document = Options(adapters=["sql-lora"]).models(scene.replicas.addresses)
    await rewrite(scene, document, "success")
    _, metrics = await scene.sidecar.get("/metrics")
    assert "extproc_config_last_reload_successful 1.0" in metrics
    assert (await scene.send(chat("hello", model="sql-lora"))).status == 200


async def test_envoy_accepts_every_name_that_a_document_can_have(launch: Launch) -> None:
    """The name of the request becomes a header."""
    scene = await launch(Options())
    names = ["café", "\u202eevil", "a  b", 'a"b', "a\\b", "<b>", "\ufeffa", "a\u2028b", "😀" * 256]
    document = Options().models(scene.replicas.addresses)
    document["models"][0]["aliases"] = names
    await rewrite(scene, document, "success")
    statuses = {
        name: (await scene.send({**chat("hello", tokens=1), "model": name})).status
        for name in names
    }
    assert statuses == dict.fromkeys(names, 200)
    document["models"][0]["aliases"] = ["a\x1bb"]
    await rewrite(scene, document, "failure")
