from __future__ import annotations

import asyncio

import pytest

from extproc.adapters.kubernetes import http_api as kubernetes_api
from extproc.adapters.kubernetes import listing
from extproc.adapters.kubernetes.errors import (
    ApiStatusError,
    Unreachable,
)
from extproc.adapters.kubernetes.http_api import KubernetesApi
from extproc.adapters.kubernetes.objects import ConfigMap
from extproc.adapters.kubernetes.resource import Resource
from tests.adapters.documents import eventually
from tests.adapters.kubernetes.reflector.scenes import ConfigMaps, Json, following, item, scripted
from tests.adapters.kubernetes.scripted import (
    Listed,
    ScriptedApi,
    ScriptedResponse,
)

pytestmark = pytest.mark.usefixtures("quick")


QUIET = 0.15
"""Wait in seconds after which a test assumes that nothing more happens."""


class TestList:
    async def test_is_reported_first(self, api: KubernetesApi, maps: ConfigMaps) -> None:
        await maps.put("a", "b", value="1")
        async with following(api, maps.namespace) as running:
            assert not running.reflector.synced
            await running.reflector.attempted.wait()
            assert running.sets == [{"a": "1", "b": "1"}]
            assert running.reflector.synced
            assert running.reflector.trouble is None
            assert running.lists == {"ok": 1}

    async def test_empty_list_is_reported(self, api: KubernetesApi, maps: ConfigMaps) -> None:
        async with following(api, maps.namespace) as running:
            await running.reflector.attempted.wait()
            assert running.sets == [{}]
            assert running.reflector.synced

    async def test_pages_are_one_set(
        self, api: KubernetesApi, maps: ConfigMaps, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(listing, "PAGE", 2)
        await maps.put("a", "b", "c", "d", "e")
        async with following(api, maps.namespace) as running:
            await maps.watched()
            assert running.sets == [dict.fromkeys("abcde", "")]
            *lists, _ = await maps.requests()
        assert [one["query"].get("limit") for one in lists] == ["2", "2", "2"]
        assert ["continue" in one["query"] for one in lists] == [False, True, True]

    async def test_of_many_objects_lets_other_tasks_run(self) -> None:
        items = [item(f"map-{number}") for number in range(500)]
        turns = 0

        async def count_turns() -> None:
            nonlocal turns
            while True:
                await asyncio.sleep(0)
                turns += 1

        counting = asyncio.create_task(count_turns())
        resource = Resource("configmaps", "/configmaps", ConfigMap)
        found = await listing.list_objects(ScriptedApi(configmaps=[Listed("1", items)]), resource)
        counting.cancel()
        assert len(found.objects) == 500
        assert turns >= 500 // 10

    async def test_is_repeated_without_pages_after_a_page_expired(self) -> None:
        pages: list[ScriptedResponse] = [
            Listed("1", [item("a")], more="token"),
            ApiStatusError(410, "too old"),
        ]
        async with scripted(*pages, Listed("5", [item("a"), item("b")])) as (api, running):
            queries = [request.query for request in api.requests if request.verb == "list"]
            assert queries == [{"limit": 500}, {"limit": 500, "continue": "token"}, {}]
            assert running.sets == [{"a": "", "b": ""}]
            assert api.requests[-1].since == "5"
            assert running.lists == {"ok": 1}

    async def test_is_complete_after_a_page_expired_on_a_real_server(
        self, api: KubernetesApi, maps: ConfigMaps, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(listing, "PAGE", 2)
        await maps.put("a", "b", "c")
        await maps.server.faults(list_delay=1.0)
        async with following(api, maps.namespace) as running:

            async def second_page_is_asked_for() -> bool:
                return len(await maps.requests()) == 2

            await eventually(second_page_is_asked_for)
            await maps.happen_elsewhere()
            await maps.server.compact()
            await running.reflector.attempted.wait()
            assert running.sets == [{"a": "", "b": "", "c": ""}]
            assert [one["status"] for one in (await maps.requests())[:3]] == [200, 410, 200]

    async def test_starts_again_after_an_error_between_pages(self) -> None:
        broken: list[ScriptedResponse] = [
            Listed("1", [item("old")], more="token"),
            Unreachable("reset"),
        ]
        async with scripted(*broken, Listed("2", [item("a")])) as (_, running):
            assert running.sets == [{"a": ""}]
            assert running.lists == {"unreachable": 1, "ok": 1}

    @pytest.mark.parametrize(
        "nonsense",
        [
            {},
            {"items": []},
            {"metadata": None, "items": []},
            {"metadata": {"resourceVersion": ""}, "items": []},
            {"metadata": {"resourceVersion": "1"}, "items": [7]},
            {"metadata": {"resourceVersion": "1"}, "items": [{}]},
            {"metadata": {"resourceVersion": "1"}, "items": ["x"]},
            {"metadata": {"resourceVersion": "1"}, "items": "x"},
        ],
    )
    async def test_malformed_list_is_ignored(self, nonsense: Json) -> None:
        async with scripted(nonsense, Listed("1", [item("a")])) as (api, running):
            assert running.sets == [{"a": ""}]
            assert running.lists == {"garbled": 1, "ok": 1}
            assert api.verbs == ["list", "list", "watch"]

    async def test_without_items_is_empty(self) -> None:
        null = {"metadata": {"resourceVersion": "1"}, "items": None}
        async with scripted(null) as (_, running):
            assert running.sets == [{}]

    async def test_can_be_slow(self, api: KubernetesApi, maps: ConfigMaps) -> None:
        await maps.put("a")
        await maps.server.faults(list_delay=0.3)
        async with following(api, maps.namespace) as running:
            await asyncio.sleep(QUIET)
            assert not running.reflector.attempted.is_set()
            assert running.reflector.trouble is None
            await running.reflector.attempted.wait()
            assert running.sets == [{"a": ""}]
            assert running.lists == {"ok": 1}

    async def test_has_a_time_limit(
        self, api: KubernetesApi, maps: ConfigMaps, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(kubernetes_api, "READ_SECONDS", 0.1)
        await maps.put("a")
        await maps.server.faults(list_delay=60)
        async with following(api, maps.namespace) as running:
            await eventually(lambda: running.lists["unreachable"] > 0)
            assert running.trouble == "no complete response in time"
            assert not running.reflector.synced
            await maps.server.faults(list_delay=0)
            await eventually(lambda: running.sets == [{"a": ""}])
