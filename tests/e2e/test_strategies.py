"""Every strategy, chosen in the models document, at work through real Envoy."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Any, get_args

import pytest

from extproc.core.schema import StrategyName
from extproc.lab.stack.processes import until
from extproc.lab.stack.sidecar import FileSidecar
from tests.e2e.scene import MODEL, Launch, Options, Scene, chat
from tests.extent import PATIENCE

QUICK = ("--time-scale", "50", "--model", MODEL)
BY_CHANCE = {"Random", "PrefixHash"}
BY_QUEUES = {"LeastQueue", "QueueKVCache", "LoraQueue", "LoraKVCache", "LowLatency", "Chain"}
LORA = ("--max-loras", "2", "--adapters", "sql,law,med")


def each(addresses: Sequence[str]) -> dict[str, Any]:
    """A models document with a model for each strategy, all on the same endpoints."""
    chain = {"chain": [{"filter": "LeastQueue", "slack": 0}]}
    return {
        "models": [
            {
                "name": strategy,
                "endpoints": list(addresses),
                "loadBalancing": {
                    "strategy": strategy,
                    **(chain if strategy == "Chain" else {}),
                },
            }
            for strategy in get_args(StrategyName)
        ]
    }


async def test_each_can_be_chosen_and_spreads_a_burst(launch: Launch) -> None:
    scene = await launch(Options(replica_arguments=("--time-scale", "50")))
    assert isinstance(scene.sidecar, FileSidecar)
    scene.sidecar.write_models(each(scene.replicas.addresses))

    async def in_force() -> bool:
        return "Chain" in await scene.sidecar.state()

    await until(in_force, PATIENCE, "every strategy to be in force")
    for lines, strategy in enumerate(get_args(StrategyName), start=1):
        bodies = (chat(f"question {i}", model=strategy, tokens=20) for i in range(24))
        replies = await asyncio.gather(*(scene.send(body) for body in bodies))
        assert {reply.status for reply in replies} == {200}, strategy
        replicas = Counter(reply.replica for reply in replies)
        # Those that look at queues send all to one that is the only empty one until it is not.
        assert len(replicas) >= (2 if strategy in BY_QUEUES else 3), (strategy, replicas)
        if strategy not in BY_CHANCE | BY_QUEUES:
            assert max(replicas.values()) <= 12, (strategy, replicas)
        entries = (await scene.access_log(24 * lines))[-24:]
        assert {entry["strategy"] for entry in entries} == {strategy}
        assert all(entry["reason"] for entry in entries)


@pytest.mark.parametrize("strategy", ["LeastQueue", "PrefixCache"])
async def test_those_that_read_signals_send_to_the_shorter_queue(
    launch: Launch, strategy: str
) -> None:
    scene = await launch(
        Options(strategy=strategy, replica_arguments=(*QUICK, "--max-num-seqs", "2"))
    )
    busy, *others = scene.replicas.addresses

    async def around(body: Any) -> None:
        # Past Envoy and the sidecar, which therefore have nothing in flight there.
        async with scene.session.post(f"http://{busy}/v1/chat/completions", json=body) as reply:
            await reply.read()

    direct = [asyncio.create_task(around(chat(f"around {i}", tokens=1000))) for i in range(12)]

    async def seen() -> bool:
        endpoints = (await scene.sidecar.state())[MODEL]["endpoints"]
        known = {e["address"]: e["signals"] for e in endpoints}
        return bool(known[busy] and known[busy]["waiting"] >= 5)

    await until(seen, PATIENCE, "the queue to be seen")
    replies = [await scene.send(chat(f"short {i}")) for i in range(6)]
    assert {reply.replica for reply in replies} <= set(others)
    for task in direct:
        task.cancel()


class TestAdapters:
    async def test_are_served_where_they_are_loaded(self, launch: Launch) -> None:
        scene = await launch(
            Options(
                strategy="LoraQueue",
                adapters=("sql", "law"),
                replica_arguments=(*QUICK, *LORA),
            )
        )
        # Not configured: the endpoints say that they have it.
        await until(lambda: all_have(scene, "med"), PATIENCE, "an adapter to be discovered")
        homes: dict[str, set[str]] = {"sql": set(), "law": set(), "med": set()}
        for i in range(8):
            for adapter, home in homes.items():
                home.add((await scene.send(chat(f"question {i}", model=adapter))).replica)
        assert {adapter: len(home) for adapter, home in homes.items()} == {
            "sql": 1,
            "law": 1,
            "med": 1,
        }

    async def test_that_nobody_has_are_refused_at_once(self, launch: Launch) -> None:
        scene = await launch(Options(strategy="LowLatency", replica_arguments=(*QUICK, *LORA)))
        reply = await scene.send(chat("hello", model="tax"))
        assert reply.status == 404
        assert reply.error()["code"] == "model_not_found"


async def all_have(scene: Scene, adapter: str) -> bool:
    """Whether the sidecar has found it on every endpoint."""
    endpoints = (await scene.sidecar.state())[MODEL]["endpoints"]
    return all(adapter in endpoint["adapters"] for endpoint in endpoints)
