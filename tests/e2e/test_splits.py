"""Splits of one name between two models, whose replicas accept only their own names."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from extproc.lab.stack.processes import until
from tests.e2e.cluster_scene import FROM_SERVICE, ClusterOptions, Deploy
from tests.e2e.forked import ForkedFleet
from tests.e2e.scene import HttpResponse, Json, Launch, Options, Scene, chat
from tests.extent import PATIENCE

STABLE, CANARY = ("--model", "meta/llama-8b"), ("--model", "llama-next")
FAST = ("--time-scale", "200", "--kv-tokens", "4000000", "--max-model-len", "4000000")


@pytest.fixture
async def canary(tmp_path: Path) -> AsyncIterator[str]:
    """Start the replica of the new model and yield its address."""
    directory = tmp_path / "canary"
    directory.mkdir()
    fleet = ForkedFleet(1, directory, (*FAST, *CANARY))
    try:
        await fleet.start()
        yield fleet.addresses[0]
    finally:
        await fleet.stop()


def split(sticky_by: str = "FirstUserMessage", **weights: int) -> Json:
    """Return the model `llama`, split between the models with these names."""
    targets = [{"model": model, "weight": weight} for model, weight in weights.items()]
    return {"name": "llama", "split": {"targets": targets, "stickyBy": sticky_by}}


@dataclass(frozen=True)
class Split(Options):
    """Two replicas of the old model and one of the new."""

    replicas: int = 2
    replica_arguments: Sequence[str] = (*FAST, *STABLE)
    canary: str = ""
    sticky_by: str = "FirstUserMessage"

    def models(self, addresses: Sequence[str]) -> Json:
        stable = {"name": "stable", "servedName": "meta/llama-8b", "endpoints": list(addresses)}
        new = {"name": "new", "servedName": "llama-next", "endpoints": [self.canary]}
        return {"models": [stable, new, split(self.sticky_by, stable=80, new=20)]}


def options(canary: str, **others: Any) -> Split:
    return Split(canary=canary, more_endpoints=[canary], **others)


async def served_model(scene: Scene, body: Json, headers: Mapping[str, str] | None = None) -> str:
    """Send a request and return the served model; a replica refuses other models' names."""
    reply: HttpResponse = await scene.send(body, headers=headers)
    assert reply.status == 200, reply.body
    return str(reply.json()["model"])


async def served_models(scene: Scene, contents: Iterable[str]) -> list[str]:
    """Send conversations with these first messages and return the served models."""
    return await asyncio.gather(*(served_model(scene, chat(content)) for content in contents))


@pytest.mark.parametrize("config", ["envoy.yaml", "endpoint-picker.yaml"])
async def test_models_share_requests_by_weight_and_conversations_stay_on_their_model(
    launch: Launch, canary: str, config: str
) -> None:
    scene = await launch(options(canary, config=config))
    contents = [f"question {i}" for i in range(200)]
    first = await served_models(scene, contents)
    assert Counter(first)["meta/llama-8b"] == pytest.approx(160, abs=24)
    assert set(first) == {"meta/llama-8b", "llama-next"}
    # The model stays the same for longer conversations and larger bodies.
    for position, padding in enumerate((0, 10, 50_000, 200_000)):
        body = chat(contents[position])
        body["messages"] += [{"role": "assistant", "content": "x" * padding}]
        assert await served_model(scene, body) == first[position]
    assert await served_models(scene, contents) == first
    listed = (await scene.send(b"", method="GET", path="/v1/models")).json()["data"]
    assert [entry["id"] for entry in listed] == ["stable", "new", "llama"]
    await scene.agree_on_inflight(0)


async def test_a_header_can_keep_a_user_on_one_model(launch: Launch, canary: str) -> None:
    scene = await launch(options(canary, sticky_by="Header:X-User"))
    by_user = {}
    for user in map(str, range(40)):
        models = {
            await served_model(scene, chat(f"question {i}"), {"x-user": user}) for i in range(3)
        }
        assert len(models) == 1
        by_user[user] = models.pop()
    assert Counter(by_user.values())["meta/llama-8b"] == pytest.approx(32, abs=8)
    # Requests without the header are split at random.
    assert set(await served_models(scene, ["the same"] * 60)) == {"meta/llama-8b", "llama-next"}


async def test_a_target_without_endpoints_is_skipped(deploy: Deploy) -> None:
    scene = await deploy(
        ClusterOptions(replicas=2, pods=1, replica_arguments=(*FAST, "--model", "stable,new"))
    )
    stable = {"name": "stable", **FROM_SERVICE}
    new = {"name": "new", "endpoints": [scene.replicas.addresses[1]]}
    await scene.configure({"models": [stable, new, split(stable=80, new=20)]})
    contents = [f"question {i}" for i in range(40)]

    async def ready(count: int) -> None:
        async def are_ready() -> bool:
            return len(await scene.ready("stable")) == count

        await until(are_ready, PATIENCE, f"{count} pods to be ready")

    await ready(1)
    before = await served_models(scene, contents)
    assert set(before) == {"stable", "new"}
    await scene.remove(0)
    await ready(0)
    assert set(await served_models(scene, contents)) == {"new"}
    await scene.api.apply(scene.pod(0))
    await ready(1)
    assert await served_models(scene, contents) == before
