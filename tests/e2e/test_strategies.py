"""Every strategy of the models document behind real Envoy."""

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
UNEVEN = {"Random", "PrefixHash"}
BY_QUEUES = {"LeastQueue", "QueueKVCache", "LoraQueue", "LoraKVCache", "LowLatency", "Chain"}
LORA = ("--max-loras", "2", "--adapters", "sql,law,med")


def each(addresses: Sequence[str]) -> dict[str, Any]:
    """Return a models document with a model for each strategy, all on the same endpoints."""
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


async def test_each_strategy_spreads_a_burst(launch: Launch) -> None:
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
        # Strategies that read queues may send many requests to the only empty endpoint.
        assert len(replicas) >= (2 if strategy in BY_QUEUES else 3), (strategy, replicas)
        if strategy not in UNEVEN | BY_QUEUES:
            assert max(replicas.values()) <= 12, (strategy, replicas)
        entries = (await scene.access_log(24 * lines))[-24:]
        assert {entry["strategy"] for entry in entries} == {strategy}
        assert all(entry["reason"] for entry in entries)


@pytest.mark.parametrize("strategy", ["LeastQueue", "PrefixCache"])
async def test_strategies_with_signals_choose_the_shorter_queue(
    launch: Launch, strategy: str
) -> None:
    scene = await launch(
        Options(strategy=strategy, replica_arguments=(*QUICK, "--max-num-seqs", "2"))
    )
    busy, *others = scene.replicas.addresses

    async def send_directly(body: Any) -> None:
        # Without Envoy and the sidecar, so that the sidecar counts no in-flight request.
        async with scene.session.post(f"http://{busy}/v1/chat/completions", json=body) as reply:
            await reply.read()

    direct = [
        asyncio.create_task(send_directly(chat(f"direct {i}", tokens=1000))) for i in range(12)
    ]

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
        # `med` is not configured: the sidecar discovers it on the endpoints.
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

    async def test_with_few_requests_stay_on_one_endpoint(self, launch: Launch) -> None:
        scene = await launch(
            Options(strategy="PrefixCache", adapters=["sql"], replica_arguments=(*QUICK, *LORA))
        )
        asked = [chat(f"question {i}", model="sql") for i in range(8)]
        assert len({(await scene.send(body)).replica for body in asked}) == 1

    async def test_unknown_to_every_endpoint_are_refused_at_once(self, launch: Launch) -> None:
        scene = await launch(Options(strategy="LowLatency", replica_arguments=(*QUICK, *LORA)))
        reply = await scene.send(chat("hello", model="tax"))
        assert reply.status == 404
        assert reply.error()["code"] == "model_not_found"


async def all_have(scene: Scene, adapter: str) -> bool:
    """Return True if the sidecar has found the adapter on every endpoint."""
    endpoints = (await scene.sidecar.state())[MODEL]["endpoints"]
    return all(adapter in endpoint["adapters"] for endpoint in endpoints)
