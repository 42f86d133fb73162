from __future__ import annotations

import asyncio
import logging

import pytest

from tests.adapters.configuration.config_map.scenes import QUIET, Scene, messages
from tests.adapters.documents import BROKEN, LLAMA, QWEN, eventually

pytestmark = pytest.mark.usefixtures("quick")


class TestDeletedConfigMap:
    async def test_leaves_last_valid_document_in_force(
        self, scene: Scene, caplog: pytest.LogCaptureFixture
    ) -> None:
        await scene.start(LLAMA)
        await scene.delete()
        await eventually(
            lambda: (
                messages(caplog, logging.WARNING) == ["ConfigMap deleted, last valid models kept"]
            )
        )
        assert scene.served.models == ["llama"]
        assert scene.served.sample("extproc_config_last_reload_successful") == 1
        assert await scene.events() == []

    async def test_restored_unchanged_has_no_effect(self, scene: Scene) -> None:
        await scene.start(LLAMA)
        await scene.delete()
        await scene.put(LLAMA)
        await asyncio.sleep(QUIET)
        assert scene.accepted() == 1
        await scene.put(QWEN)
        await scene.serves("qwen")

    async def test_restored_with_changes_takes_effect(self, scene: Scene) -> None:
        await scene.start(LLAMA)
        await scene.delete()
        await scene.put(QWEN)
        await scene.serves("qwen")

    async def test_restored_with_invalid_document_is_refused(self, scene: Scene) -> None:
        await scene.start(LLAMA)
        await scene.delete()
        await scene.put(BROKEN)
        await scene.has_events("ModelsRefused")
        assert scene.served.models == ["llama"]
        await scene.delete()
        await scene.put(LLAMA)
        await scene.has_events("ModelsRefused", "ModelsAccepted")
