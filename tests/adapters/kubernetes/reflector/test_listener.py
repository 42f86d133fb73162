from __future__ import annotations

import asyncio

import pytest

from extproc.adapters.kubernetes.errors import (
    ApiStatusError,
    KubernetesError,
    MalformedResponse,
    Unreachable,
)
from extproc.adapters.kubernetes.http_api import KubernetesApi
from tests.adapters.documents import eventually
from tests.adapters.kubernetes.reflector.scenes import ConfigMaps, following, scripted
from tests.adapters.kubernetes.scripted import (
    Listed,
    ScriptedApi,
    ScriptedResponse,
    Watched,
)

pytestmark = pytest.mark.usefixtures("quick")


class TestListener:
    @pytest.mark.parametrize(
        ("error", "result"),
        [
            (ApiStatusError(410, "x"), "expired"),
            (ApiStatusError(403, "x"), "403"),
            (MalformedResponse("x"), "garbled"),
            (Unreachable("x"), "unreachable"),
        ],
    )
    async def test_receives_lists_and_watches_by_result(
        self, error: KubernetesError, result: str
    ) -> None:
        first = [error, error] if result == "expired" else [error]
        async with scripted(*first, Listed("1"), error) as (_, running):
            assert running.lists[result] == 1
            assert running.lists["ok"] >= 1
            assert running.watches == {result: 1}


class TestCancellation:
    async def test_leaves_nothing_running(self, api: KubernetesApi, maps: ConfigMaps) -> None:
        before = asyncio.all_tasks()
        open_before = await maps.server.open_watches()
        async with following(api, maps.namespace):
            await maps.watched()
            assert await maps.server.open_watches() == open_before + 1
        assert asyncio.all_tasks() == before

        async def is_closed() -> bool:
            return await maps.server.open_watches() == open_before

        await eventually(is_closed)

    @pytest.mark.parametrize(
        "script",
        [
            [],
            [Listed("1")],
            [Listed("1"), Watched(stays_open=True)],
            [Unreachable("no")] * 5,
        ],
    )
    async def test_takes_effect_at_once_in_any_state(self, script: list[ScriptedResponse]) -> None:
        before = asyncio.all_tasks()
        async with following(ScriptedApi(configmaps=script), "ns"):
            await asyncio.sleep(0.05)
        assert asyncio.all_tasks() == before
