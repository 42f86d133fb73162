from __future__ import annotations

import asyncio

import pytest

from extproc.adapters import backoff
from extproc.adapters.kubernetes import reflector
from extproc.adapters.kubernetes.http_api import KubernetesApi
from tests.adapters.documents import eventually
from tests.adapters.kubernetes.reflector.scenes import ConfigMaps, added, following, item, scripted
from tests.adapters.kubernetes.scripted import (
    Listed,
    ScriptedApi,
    Watched,
    bookmark,
    event,
)

pytestmark = pytest.mark.usefixtures("quick")


class TestWatch:
    async def test_continues_from_the_list(self, api: KubernetesApi, maps: ConfigMaps) -> None:
        await maps.put("a")
        await maps.happen_elsewhere()
        async with following(api, maps.namespace) as running:
            await maps.watched()
            _, watch = await maps.requests()
            assert running.sets == [{"a": ""}]
        query = watch["query"]
        assert query["allowWatchBookmarks"] == "true"
        assert 300 <= int(query["timeoutSeconds"]) <= 600

    async def test_starts_at_the_version_of_the_list(self) -> None:
        async with scripted(Listed("41", [item("a", version="7")])) as (api, _):
            assert [(request.verb, request.since) for request in api.requests] == [
                ("list", None),
                ("watch", "41"),
            ]

    async def test_each_event_changes_the_set(self) -> None:
        events = [
            added("a", "2", "1"),
            added("b", "3", "1"),
            event("MODIFIED", "4", item("a", "2")),
            event("DELETED", "5", item("b", "1")),
            # As after a relist inside the server.
            added("a", "6", "3"),
            event("MODIFIED", "7", item("c", "1")),
            event("DELETED", "8", item("unknown")),
        ]
        async with scripted(Listed("1"), Watched(events)) as (api, running):
            assert running.sets == [
                {},
                {"a": "1"},
                {"a": "1", "b": "1"},
                {"a": "2", "b": "1"},
                {"a": "2"},
                {"a": "3"},
                {"a": "3", "c": "1"},
                {"a": "3", "c": "1"},
            ]
            assert api.requests[-1].since == "8"

    async def test_reports_created_changed_and_deleted_objects(
        self, api: KubernetesApi, maps: ConfigMaps
    ) -> None:
        await maps.put("a", value="1")
        async with following(api, maps.namespace) as running:
            await maps.watched()
            await maps.put("b", value="1")
            await eventually(lambda: running.latest == {"a": "1", "b": "1"})
            await maps.put("a", value="2")
            await eventually(lambda: running.latest == {"a": "2", "b": "1"})
            await maps.delete("b")
            await eventually(lambda: running.latest == {"a": "2"})
            assert await maps.verbs() == ["list", "watch"]

    async def test_removes_objects_that_no_longer_match_the_selector(
        self, api: KubernetesApi, maps: ConfigMaps
    ) -> None:
        await maps.put("a", "b", app="x")
        await maps.put("other", app="y")
        async with following(api, maps.namespace, label_selector="app=x") as running:
            await maps.watched()
            assert running.latest == {"a": "", "b": ""}
            await maps.put("a", app="y")
            await eventually(lambda: running.latest == {"b": ""})
            await maps.put("other", app="x")
            await eventually(lambda: running.latest == {"b": "", "other": ""})
            queries = [one["query"]["labelSelector"] for one in await maps.requests()]
            assert queries == ["app=x", "app=x"]

    async def test_of_one_object_requests_only_that_object(
        self, api: KubernetesApi, maps: ConfigMaps
    ) -> None:
        await maps.put("a", "b")
        async with following(api, maps.namespace, field_selector="metadata.name=a") as running:
            await maps.watched()
            assert running.sets == [{"a": ""}]
            assert [one["name"] for one in await maps.requests()] == ["a", "a"]

    async def test_next_one_continues_at_the_last_version(self) -> None:
        first = Watched([added("a", "2"), added("b", "3")])
        async with scripted(Listed("1"), first, Watched([added("c", "4")])) as (api, running):
            assert [request.since for request in api.requests] == [None, "1", "3", "4"]
            assert running.sets[-1] == {"a": "", "b": "", "c": ""}
            assert running.watches == {"ended": 2}
            assert running.reflector.trouble is None

    async def test_loses_nothing_when_the_server_ends_it(
        self, api: KubernetesApi, maps: ConfigMaps
    ) -> None:
        async with following(api, maps.namespace) as running:
            for turn in range(5):
                await maps.watched(turn + 1)
                await maps.server.drop_watches()
                await maps.put(f"{turn}")
            await eventually(lambda: len(running.latest) == 5)
            assert (await maps.verbs()).count("list") == 1
            assert not running.trouble
            assert [len(one) for one in running.sets] == [0, 1, 2, 3, 4, 5]

    async def test_uses_versions_of_bookmarks(self) -> None:
        async with scripted(Listed("1", [item("a")]), Watched([bookmark("9")])) as (api, running):
            assert api.requests[-1].since == "9"
            assert running.sets == [{"a": ""}]

    async def test_set_is_listed_again_after_the_relist_time(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(reflector, "RELIST_SECONDS", (0, 0))
        script = (Listed("1", [item("a")]), Watched(), Listed("5", [item("b")]))
        async with scripted(*script) as (api, running):
            assert api.verbs == ["list", "watch", "list", "watch"]
            assert running.sets == [{"a": ""}, {"b": ""}]

    async def test_older_bookmark_leads_to_a_new_list(self) -> None:
        """The server's store was restored: a watch would be silent until the server catches up."""
        script = (Listed("90", [item("a")]), Watched([bookmark("9")]), Listed("9", [item("b")]))
        async with scripted(*script) as (api, running):
            assert api.verbs == ["list", "watch", "list", "watch"]
            assert api.requests[-1].since == "9"
            assert running.sets == [{"a": ""}, {"b": ""}]

    @pytest.mark.usefixtures("short_watches")
    async def test_bookmarks_keep_the_version_from_expiring(
        self, api: KubernetesApi, maps: ConfigMaps
    ) -> None:
        await maps.put("a")
        async with following(api, maps.namespace) as running:
            await maps.watched()
            await maps.happen_elsewhere()
            await maps.watched(2)
            # The list's version has expired; the bookmark's has not.
            await maps.server.compact()
            await maps.watched(3)
            await maps.put("b")
            await eventually(lambda: running.latest == {"a": "", "b": ""})
            assert (await maps.verbs()).count("list") == 1
            assert running.watches["expired"] == 0

    async def test_pauses_if_the_server_ends_each_one_at_once(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(backoff, "FIRST_SECONDS", 0.05)
        api = ScriptedApi(configmaps=[Listed("1"), *[Watched()] * 1000])
        async with following(api, "ns") as running:
            await asyncio.sleep(0.3)
            assert 2 <= running.watches["ended"] <= 7
