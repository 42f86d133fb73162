from __future__ import annotations

import asyncio
import logging

import pytest

from extproc.lab.api_server.builders import config_map
from tests.adapters.configuration.config_map.scenes import QUIET, Scene, following, messages, models
from tests.adapters.documents import BROKEN, LLAMA, QWEN, eventually
from tests.adapters.kubernetes.scripted import (
    Listed,
    ScriptedApi,
    Watched,
    at,
    event,
)

pytestmark = pytest.mark.usefixtures("quick")


OTHER_BROKEN = b"models: {}\n"


class TestInvalidDocument:
    async def test_leaves_last_valid_document_in_force(self, scene: Scene) -> None:
        await scene.start(LLAMA)
        await scene.put(BROKEN)
        await scene.refuses()
        assert scene.served.models == ["llama"]
        assert scene.served.sample("extproc_config_last_reload_successful") == 0
        await scene.put(QWEN)
        await scene.serves("qwen")
        assert scene.served.sample("extproc_config_last_reload_successful") == 1

    @pytest.mark.parametrize(
        "document", [b"", b"\x00", b"[" * 3000, b"models: !!bool maybe", b"{? [a] : b}", b"7"]
    )
    async def test_can_have_any_contents(self, document: bytes, scene: Scene) -> None:
        await scene.start(LLAMA)
        await scene.put(document)
        await scene.refuses()
        assert scene.served.models == ["llama"]
        await scene.put(QWEN)
        await scene.serves("qwen")

    async def test_can_be_invalid_unicode(self) -> None:
        lone = config_map("ns", "models", {"models.yaml": "models: \ud800"})
        listed = Listed("1", [at("1", models(LLAMA))])
        mended = Watched([event("MODIFIED", "3", models(QWEN))], begins=asyncio.Event())
        assert mended.begins is not None
        refused = Watched([event("MODIFIED", "2", lone)])
        async with following(ScriptedApi(configmaps=[listed, refused, mended])) as served:
            await eventually(lambda: served.refusals() == 1)
            assert served.models == ["llama"]
            mended.begins.set()
            await eventually(lambda: served.models == ["qwen"])
            assert served.refusals() == 1

    async def test_creates_an_event_on_the_config_map(self, scene: Scene) -> None:
        await scene.start(LLAMA)
        await scene.put(BROKEN)
        await scene.has_events("ModelsRefused")
        ((kind, _, message),) = await scene.events()
        assert kind == "Warning"
        assert message == "line 2, column 1: did not find expected node content"
        (created,) = await scene.server.objects("events", scene.namespace)
        (about,) = await scene.server.objects("configmaps", scene.namespace)
        for field in ("name", "namespace", "uid", "resourceVersion"):
            assert created["involvedObject"][field] == about["metadata"][field]

    async def test_each_one_creates_an_event_and_so_does_the_next_valid_one(
        self, scene: Scene
    ) -> None:
        await scene.start(LLAMA)
        await scene.put(BROKEN)
        await scene.refuses(1)
        await scene.put(OTHER_BROKEN)
        await scene.refuses(2)
        await scene.put(QWEN)
        refused_and_mended = ["ModelsRefused", "ModelsRefused", "ModelsAccepted"]
        await scene.has_events(*refused_and_mended)
        assert (await scene.events())[-1][0] == "Normal"
        await scene.put(LLAMA)
        await scene.serves("llama")
        await scene.put(BROKEN)
        await scene.has_events(*refused_and_mended, "ModelsRefused")

    async def test_of_several_sidecars_creates_one_event(
        self, scene: Scene, caplog: pytest.LogCaptureFixture
    ) -> None:
        await scene.start(LLAMA)
        other = Scene(scene.server, scene.namespace)
        await other.start(LLAMA)
        for document in (BROKEN, QWEN, BROKEN):
            refusals = scene.served.refusals()
            await scene.put(document)
            for one in (scene, other):
                if document is QWEN:
                    await one.serves("qwen")
                else:
                    await one.refuses(int(refusals) + 1)

        async def both_have_tried() -> bool:
            return [one["verb"] for one in await scene.requests()].count("create") == 6

        await eventually(both_have_tried)
        await scene.has_events("ModelsRefused", "ModelsAccepted", "ModelsRefused")
        assert "Event not created" not in messages(caplog, logging.WARNING)
        await other.stop()

    async def test_can_be_a_megabyte_that_json_escapes(self, scene: Scene) -> None:
        await scene.start(LLAMA)
        await scene.watched()
        await scene.put(b"<" * 1_000_000)
        await scene.has_events("ModelsRefused")
        ((_, _, message),) = await scene.events()
        assert message == "the document must be a mapping with the key 'models'"
        assert [one["verb"] for one in await scene.requests()] == ["list", "watch", "create"]

    async def test_creates_only_one_event(
        self, scene: Scene, caplog: pytest.LogCaptureFixture
    ) -> None:
        await scene.start(LLAMA)
        await scene.put(BROKEN)
        await scene.has_events("ModelsRefused")
        await scene.put_data({"models.yaml": BROKEN.decode()}, touched="yes")
        await self.lists_again(scene)
        await asyncio.sleep(QUIET)
        await scene.has_events("ModelsRefused")
        assert scene.served.refusals() == 1
        assert messages(caplog, logging.ERROR) == ["models document refused"]

    async def test_missing_key_creates_only_one_event(self, scene: Scene) -> None:
        await scene.start(LLAMA)
        await scene.put_data({})
        await scene.has_events("ModelsRefused")
        await scene.put_data({"other": "x"})
        await scene.put_data({}, touched="yes")
        await self.lists_again(scene)
        await asyncio.sleep(QUIET)
        assert [message for *_, message in await scene.events()] == [
            "there is no key 'models.yaml'"
        ]
        await scene.put(LLAMA)
        await scene.has_events("ModelsRefused", "ModelsAccepted")

    async def lists_again(self, scene: Scene) -> None:
        """Make the next watch list again, as after a long outage of the API server."""
        await scene.server.apply(config_map(f"{scene.namespace}-elsewhere", "x", {}))
        await scene.server.compact()
        await scene.server.drop_watches()

        async def is_listed() -> bool:
            return [one["verb"] for one in await scene.requests()].count("list") == 2

        await eventually(is_listed)

    async def test_failed_event_does_no_harm(
        self, scene: Scene, caplog: pytest.LogCaptureFixture
    ) -> None:
        await scene.start(LLAMA)
        await scene.server.faults(forbidden=["events"])
        await scene.put(BROKEN)
        await scene.refuses()
        await scene.put(QWEN)
        await scene.serves("qwen")
        await eventually(lambda: len(messages(caplog, logging.WARNING)) == 2)
        assert messages(caplog, logging.WARNING) == ["Event not created"] * 2
        assert await scene.events() == []
