from __future__ import annotations

import asyncio

import pytest

from extproc.lab.api_server.builders import config_map
from tests.adapters.configuration.config_map.scenes import QUIET, Scene, following, models
from tests.adapters.documents import BROKEN, LLAMA, QWEN, eventually
from tests.adapters.kubernetes.scripted import (
    Listed,
    ScriptedApi,
    Watched,
    at,
    event,
)

pytestmark = pytest.mark.usefixtures("quick")


class TestChange:
    async def test_takes_effect(self, scene: Scene) -> None:
        await scene.start(LLAMA)
        await scene.put(QWEN)
        await scene.serves("qwen")
        await scene.put(LLAMA)
        await scene.serves("llama")
        assert scene.accepted() == 3
        assert await scene.events() == []

    async def test_of_other_keys_is_ignored(self, scene: Scene) -> None:
        await scene.start(LLAMA)
        await scene.put_data({"models.yaml": LLAMA.decode(), "other": "x"}, touched="yes")
        await asyncio.sleep(QUIET)
        assert scene.accepted() == 1

    async def test_of_large_document_arrives_as_watch_event(self, scene: Scene) -> None:
        await scene.start(LLAMA)
        await scene.watched()
        await scene.put(QWEN + b"#" * 1_000_000)
        await scene.serves("qwen")
        assert [one["verb"] for one in await scene.requests()] == ["list", "watch"]

    async def test_during_outage_takes_effect_when_server_returns(self, scene: Scene) -> None:
        await scene.start(LLAMA)
        await scene.server.faults(listening=False)
        await scene.put(QWEN)
        await asyncio.sleep(QUIET)
        assert scene.served.models == ["llama"]
        await scene.server.faults(listening=True)
        await scene.serves("qwen")

    async def test_last_of_a_hundred_is_in_force(self, scene: Scene) -> None:
        await scene.start(LLAMA)
        for turn in range(100):
            await scene.put(LLAMA.replace(b"llama", f"llama-{turn}".encode()))
        await scene.serves("llama-99")
        assert scene.served.refusals() == 0

    async def test_during_another_change_is_not_lost(self) -> None:
        changes = [
            event("MODIFIED", "2", models(QWEN)),
            event("MODIFIED", "3", models(BROKEN)),
            event("MODIFIED", "4", models(LLAMA)),
            event("MODIFIED", "5", models(QWEN)),
        ]
        listed = Listed("1", [at("1", models(LLAMA))])
        async with following(ScriptedApi(configmaps=[listed, Watched(changes)])) as served:
            await eventually(lambda: served.models == ["qwen"])
            await asyncio.sleep(QUIET)
            assert served.models == ["qwen"]

    async def test_requests_no_other_object(self, scene: Scene) -> None:
        await scene.server.apply(config_map(scene.namespace, "kube-root-ca.crt", {}))
        await scene.start(LLAMA)
        await scene.put(BROKEN)
        await scene.has_events("ModelsRefused")
        requests = await scene.server.requests()
        assert [(one["verb"], one["resource"]) for one in requests] == [
            ("list", "configmaps"),
            ("watch", "configmaps"),
            ("create", "events"),
        ]
        for one in requests[:2]:
            assert one["query"]["fieldSelector"] == "metadata.name=models"
            assert one["namespace"] == scene.namespace
