from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from itertools import pairwise
from random import Random
from time import monotonic
from typing import Any

import pytest

from extproc.adapters import backoff
from extproc.adapters.kubernetes import http_api as kubernetes_api
from extproc.adapters.kubernetes import listing, reflector
from extproc.adapters.kubernetes.api import Api
from extproc.adapters.kubernetes.errors import (
    ApiStatusError,
    KubernetesError,
    MalformedResponse,
    Unreachable,
)
from extproc.adapters.kubernetes.http_api import KubernetesApi
from extproc.adapters.kubernetes.objects import ConfigMap
from extproc.adapters.kubernetes.reflector import Reflector
from extproc.adapters.kubernetes.resource import Resource
from extproc.lab.api_server.builders import config_map
from extproc.lab.api_server.process import StandInApiServer
from tests.adapters.documents import eventually
from tests.adapters.kubernetes.scripted import (
    Answer,
    Listed,
    ScriptedApi,
    Watched,
    at,
    bookmark,
    event,
    expired,
)

pytestmark = pytest.mark.usefixtures("quick")

Json = dict[str, Any]

QUIET = 0.15
"""Wait in seconds after which a test assumes that nothing more happens."""


class RunningReflector:
    """A running reflector of ConfigMaps, and every set that it reported: values by name."""

    def __init__(self, api: Api, resource: Resource[ConfigMap]) -> None:
        self.sets: list[dict[str, str]] = []
        self.lists: Counter[str] = Counter()
        self.watches: Counter[str] = Counter()
        self.on_report: Callable[[], None] = lambda: None
        self.reflector = Reflector(api, resource, self._changed, self, Random(0))
        self.task = asyncio.create_task(self.reflector.run())

    @property
    def latest(self) -> dict[str, str]:
        return self.sets[-1] if self.sets else {}

    @property
    def trouble(self) -> str:
        return self.reflector.trouble or ""

    async def is_in_trouble(self, of_kind: str) -> None:
        """Wait for this trouble."""
        await eventually(lambda: self.trouble.startswith(of_kind))

    def listed(self, resource: str, result: str) -> None:
        assert resource == "configmaps"
        self.lists[result] += 1

    def watched(self, resource: str, result: str) -> None:
        assert resource == "configmaps"
        self.watches[result] += 1

    def _changed(self, objects: Mapping[str, ConfigMap]) -> None:
        self.sets.append({name: one.data.get("key", "") for name, one in objects.items()})
        self.on_report()


@asynccontextmanager
async def following(api: Api, namespace: str, **selectors: str) -> AsyncIterator[RunningReflector]:
    path = f"/api/v1/namespaces/{namespace}/configmaps"
    running = RunningReflector(api, Resource("configmaps", path, ConfigMap, **selectors))
    try:
        yield running
        assert not running.task.done(), "it keeps watching"
    finally:
        running.task.cancel()
        await asyncio.wait([running.task])
    assert running.task.cancelled()


@asynccontextmanager
async def scripted(*answers: Answer) -> AsyncIterator[tuple[ScriptedApi, RunningReflector]]:
    """Run a reflector through a script, to its end."""
    api = ScriptedApi(configmaps=answers)
    async with following(api, "ns") as running:
        await eventually(lambda: len(api.asked) == len(answers) + 1)
        yield api, running


class ConfigMaps:
    """The ConfigMaps of one namespace of the stand-in server, and the requests for them."""

    def __init__(self, server: StandInApiServer, namespace: str) -> None:
        self.server = server
        self.namespace = namespace

    def item(self, name: str, value: str = "", **labels: str) -> Json:
        body = config_map(self.namespace, name, {"key": value})
        body["metadata"]["labels"] = labels
        return body

    async def put(self, *names: str, value: str = "", **labels: str) -> None:
        await self.server.apply(*(self.item(name, value, **labels) for name in names))

    async def delete(self, name: str) -> None:
        await self.server.delete("ConfigMap", self.namespace, name)

    async def happen_elsewhere(self) -> None:
        """Create a new version without an event in this namespace."""
        other = config_map(f"{self.namespace}-elsewhere", "x", {"key": str(monotonic())})
        await self.server.apply(other)

    async def asked(self) -> list[Json]:
        return [one for one in await self.server.requests() if one["namespace"] == self.namespace]

    async def verbs(self) -> list[str]:
        return [one["verb"] for one in await self.asked()]

    async def watched(self, times: int = 1) -> None:
        """Wait until this many watches were opened."""

        async def is_watched() -> bool:
            watches = [one for one in await self.asked() if one["verb"] == "watch"]
            return [one["status"] for one in watches].count(200) >= times

        await eventually(is_watched)


@pytest.fixture
def maps(server: StandInApiServer, namespace: str) -> ConfigMaps:
    return ConfigMaps(server, namespace)


def item(name: str, value: str = "", version: str = "1") -> Json:
    return at(version, config_map("ns", name, {"key": value}))


def added(name: str, version: str, value: str = "") -> Json:
    return event("ADDED", version, item(name, value))


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
            *lists, _ = await maps.asked()
        assert [one["query"].get("limit") for one in lists] == ["2", "2", "2"]
        assert ["continue" in one["query"] for one in lists] == [False, True, True]

    async def test_is_repeated_without_pages_after_a_page_expired(self) -> None:
        pages: list[Answer] = [
            Listed("1", [item("a")], more="token"),
            ApiStatusError(410, "too old"),
        ]
        async with scripted(*pages, Listed("5", [item("a"), item("b")])) as (api, running):
            queries = [asked.query for asked in api.asked if asked.verb == "list"]
            assert queries == [{"limit": 500}, {"limit": 500, "continue": "token"}, {}]
            assert running.sets == [{"a": "", "b": ""}]
            assert api.asked[-1].since == "5"
            assert running.lists == {"ok": 1}

    async def test_is_complete_after_a_page_expired_on_a_real_server(
        self, api: KubernetesApi, maps: ConfigMaps, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(listing, "PAGE", 2)
        await maps.put("a", "b", "c")
        await maps.server.faults(list_delay=0.1)
        async with following(api, maps.namespace) as running:

            async def second_page_is_asked_for() -> bool:
                return len(await maps.asked()) == 2

            await eventually(second_page_is_asked_for)
            await maps.happen_elsewhere()
            await maps.server.compact()
            await running.reflector.attempted.wait()
            assert running.sets == [{"a": "", "b": "", "c": ""}]
            assert [one["status"] for one in (await maps.asked())[:3]] == [200, 410, 200]

    async def test_starts_again_after_an_error_between_pages(self) -> None:
        broken: list[Answer] = [Listed("1", [item("old")], more="token"), Unreachable("reset")]
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


class TestWatch:
    async def test_continues_from_the_list(self, api: KubernetesApi, maps: ConfigMaps) -> None:
        await maps.put("a")
        await maps.happen_elsewhere()
        async with following(api, maps.namespace) as running:
            await maps.watched()
            _, watch = await maps.asked()
            assert running.sets == [{"a": ""}]
        query = watch["query"]
        assert query["allowWatchBookmarks"] == "true"
        assert 20 <= int(query["timeoutSeconds"]) <= 30

    async def test_starts_at_the_version_of_the_list(self) -> None:
        async with scripted(Listed("41", [item("a", version="7")])) as (api, _):
            assert [(asked.verb, asked.since) for asked in api.asked] == [
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
            assert api.asked[-1].since == "8"

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
            queries = [one["query"]["labelSelector"] for one in await maps.asked()]
            assert queries == ["app=x", "app=x"]

    async def test_of_one_object_requests_only_that_object(
        self, api: KubernetesApi, maps: ConfigMaps
    ) -> None:
        await maps.put("a", "b")
        async with following(api, maps.namespace, field_selector="metadata.name=a") as running:
            await maps.watched()
            assert running.sets == [{"a": ""}]
            assert [one["name"] for one in await maps.asked()] == ["a", "a"]

    async def test_next_one_continues_at_the_last_version(self) -> None:
        first = Watched([added("a", "2"), added("b", "3")])
        async with scripted(Listed("1"), first, Watched([added("c", "4")])) as (api, running):
            assert [asked.since for asked in api.asked] == [None, "1", "3", "4"]
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
            assert api.asked[-1].since == "9"
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
            assert api.asked[-1].since == "9"
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


class TestExpiredVersion:
    """Status 410, which a watch reports as a status or, after its start, as an event."""

    @pytest.mark.parametrize("watch", [Watched([expired()]), ApiStatusError(410, "too old"), None])
    async def test_leads_to_a_new_list(self, watch: Answer | None) -> None:
        late = Watched([added("b", "2"), expired()])
        again = Listed("9", [item("a"), item("c")])
        async with scripted(Listed("1", [item("a")]), Watched(), watch or late, again) as (
            api,
            running,
        ):
            assert api.verbs == ["list", "watch", "watch", "list", "watch"]
            assert api.asked[-1].since == "9"
            assert running.sets[0] == {"a": ""}
            assert running.sets[-1] == {"a": "", "c": ""}
            assert all("a" in objects for objects in running.sets), "it was always there"
            assert running.watches == {"ended": 1, "expired": 1}
            assert running.reflector.trouble is None

    async def test_costs_one_list_and_the_set_is_never_empty(
        self, api: KubernetesApi, maps: ConfigMaps
    ) -> None:
        await maps.put("a", "b")
        async with following(api, maps.namespace) as running:
            await maps.watched()
            await maps.server.faults(listening=False)
            await maps.delete("a")
            await maps.put("c")
            await maps.server.compact()
            await maps.server.faults(listening=True)
            await eventually(lambda: running.latest == {"b": "", "c": ""})
            await maps.watched(3)
            assert running.sets == [{"a": "", "b": ""}, {"b": "", "c": ""}]
            assert (await maps.verbs()).count("list") == 2

    async def test_keeps_the_set_while_the_new_list_fails(self) -> None:
        failures: list[Answer] = [
            ApiStatusError(503, "busy"),
            Unreachable("reset"),
            ApiStatusError(403, "no"),
        ]
        async with scripted(Listed("1", [item("a")]), Watched([expired()]), *failures) as (
            api,
            running,
        ):
            assert running.sets == [{"a": ""}]
            assert running.trouble == "403 no"
            assert api.verbs == ["list", "watch", "list", "list", "list", "list"]

    async def test_of_a_new_list_increases_the_backoff(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(backoff, "FIRST_SECONDS", 0.01)
        script: list[Answer] = [Listed("1", [item("a")]), Watched([expired()])]
        api = ScriptedApi(configmaps=script * 500)
        async with following(api, "ns") as running:
            await asyncio.sleep(0.4)
            assert "410" in running.trouble
            assert 3 <= api.verbs.count("list") <= 9
            assert all(objects == {"a": ""} for objects in running.sets)


class TestErrors:
    @pytest.mark.parametrize("code", [401, 403, 408, 429, 500, 503])
    async def test_temporary_error_keeps_the_version(self, code: int) -> None:
        trouble = ApiStatusError(code, "not now")
        async with scripted(Listed("1", [item("a")]), trouble, trouble) as (api, running):
            assert [asked.since for asked in api.asked] == [None, "1", "1", "1"]
            assert running.trouble == f"{code} not now"
            assert running.sets == [{"a": ""}]

    @pytest.mark.parametrize("code", [400, 404, 410, 422, 504])
    async def test_lasting_error_leads_to_a_list(self, code: int) -> None:
        again = Listed("2", [item("a")])
        watch = ApiStatusError(code, "no such thing")
        async with scripted(Listed("1", [item("a")]), Watched(), watch, again) as (api, _):
            assert [asked.since for asked in api.asked] == [None, "1", "1", None, "2"]

    @pytest.mark.parametrize(
        "line",
        [
            {},
            {"type": "ADDED"},
            {"type": "ADDED", "object": None},
            {"type": "ADDED", "object": {"metadata": {"name": "x"}}},
            {"type": "ADDED", "object": {"metadata": {"resourceVersion": "2"}}},
            {"type": "ADDED", "object": {"metadata": {"name": "x", "resourceVersion": 2}}},
            {"type": "BOOKMARK", "object": {"metadata": {}}},
            {"type": "UNHEARD-OF", "object": item("x", version="2")},
            {"type": ["ADDED"], "object": item("x", version="2")},
        ],
    )
    async def test_malformed_event_leads_to_a_list(self, line: Json) -> None:
        again = Listed("5", [item("b")])
        async with scripted(Listed("1", [item("a")]), Watched([line]), again) as (api, running):
            assert api.verbs == ["list", "watch", "list", "watch"]
            assert running.sets == [{"a": ""}, {"b": ""}]
            assert running.watches == {"garbled": 1}

    @pytest.mark.parametrize(
        ("status", "shown"),
        [
            ({"code": 500, "message": "etcd"}, "500 etcd"),
            ({"code": "x", "message": "etcd"}, "500 etcd"),
            ({}, "500 None"),
            (None, "500 None"),
        ],
    )
    async def test_error_event_leads_to_a_list(self, status: Json | None, shown: str) -> None:
        error = {"type": "ERROR", "object": status}
        async with scripted(Listed("1", [item("a")]), Watched([error])) as (api, running):
            assert running.trouble == shown
            assert api.asked[-1].verb == "list"
            assert running.sets == [{"a": ""}]

    async def test_broken_connection_loses_nothing(
        self, api: KubernetesApi, maps: ConfigMaps
    ) -> None:
        async with following(api, maps.namespace) as running:
            for turn in range(3):
                await maps.watched(turn + 1)
                await maps.server.drop_watches(abort=True)
                await maps.put(f"{turn}")
            await eventually(lambda: len(running.latest) == 3)
            assert (await maps.verbs()).count("list") == 1
            assert running.watches["unreachable"] >= 1
            assert running.watches["garbled"] == 0

    async def test_malformed_line_leads_to_a_list(
        self, api: KubernetesApi, maps: ConfigMaps
    ) -> None:
        await maps.put("a")
        async with following(api, maps.namespace) as running:
            await maps.watched()
            await maps.server.faults(garbage=True)
            await maps.put("b")
            await eventually(lambda: running.latest == {"a": "", "b": ""})
            assert running.sets == [{"a": ""}, {"a": "", "b": ""}]
            assert (await maps.verbs()).count("list") == 2
            assert running.watches["garbled"] == 1

    async def test_missing_permission_at_first_is_reported_until_granted(
        self, api: KubernetesApi, maps: ConfigMaps
    ) -> None:
        await maps.put("a")
        await maps.server.faults(forbidden=["configmaps"])
        async with following(api, maps.namespace) as running:
            await running.reflector.attempted.wait()
            assert not running.reflector.synced
            assert running.trouble.startswith("403 ")
            assert "configmaps" in running.trouble
            assert running.sets == []
            await maps.server.faults(forbidden=[])
            await eventually(lambda: running.reflector.synced)
            assert running.sets == [{"a": ""}]
            assert not running.trouble

    @pytest.mark.parametrize("fault", [{"forbidden": ["configmaps"]}, {"failing": 429}])
    @pytest.mark.parametrize("later", [{"failing": 500}, {"failing": 503}])
    async def test_later_missing_permission_keeps_the_set(
        self, api: KubernetesApi, maps: ConfigMaps, fault: Json, later: Json
    ) -> None:
        await maps.put("a")
        async with following(api, maps.namespace) as running:
            await maps.watched()
            for trouble in (fault, later):
                await maps.server.faults(forbidden=[], failing=0)
                await maps.server.faults(**trouble)
                await maps.server.drop_watches()
                await running.is_in_trouble(str(trouble.get("failing", 403)))
                assert running.reflector.synced
            await maps.put("b")
            assert running.sets == [{"a": ""}]
            await maps.server.faults(forbidden=[], failing=0)
            await eventually(lambda: running.sets == [{"a": ""}, {"a": "", "b": ""}])
            assert (await maps.verbs()).count("list") == 1
            assert not running.trouble

    async def test_absent_server_keeps_the_set_until_it_returns(
        self, api: KubernetesApi, maps: ConfigMaps, caplog: pytest.LogCaptureFixture
    ) -> None:
        await maps.put("a")
        with caplog.at_level(logging.INFO, "extproc.kubernetes"):
            async with following(api, maps.namespace) as running:
                await maps.watched()
                await maps.server.faults(listening=False)
                confirmed = running.reflector.confirmed_at
                await eventually(lambda: running.watches["unreachable"] >= 4)
                await maps.put("b")
                await maps.delete("a")
                assert running.sets == [{"a": ""}]
                assert running.reflector.confirmed_at == confirmed, "the copy is not current"
                await maps.server.faults(listening=True)
                await eventually(lambda: running.latest == {"b": ""})
                assert running.reflector.confirmed_at > confirmed
                assert (await maps.verbs()).count("list") == 1
        messages = [record.getMessage() for record in caplog.records]
        assert messages[-1] == "watch recovered"
        assert 1 <= messages.count("watch failed, last known objects kept") <= 2, (
            "each error is logged once"
        )

    @pytest.mark.usefixtures("short_watches")
    async def test_frozen_server_is_detected(self, api: KubernetesApi, maps: ConfigMaps) -> None:
        await maps.put("a")
        async with following(api, maps.namespace) as running:
            await maps.watched()
            await maps.server.faults(frozen=True)
            await maps.put("b")
            await running.is_in_trouble("no complete response in time")
            assert running.sets == [{"a": ""}]
            await maps.server.faults(frozen=False)
            await eventually(lambda: running.latest == {"a": "", "b": ""})
            assert (await maps.verbs()).count("list") == 1

    @pytest.mark.usefixtures("short_watches")
    async def test_silent_watch_is_detected(self, api: KubernetesApi, maps: ConfigMaps) -> None:
        async with following(api, maps.namespace) as running:
            await maps.watched()
            await maps.server.faults(silent_watches=True)
            began = monotonic()
            await maps.put("a")
            await eventually(lambda: running.latest == {"a": ""})
            assert 0.5 < monotonic() - began < 2
            assert running.watches["unreachable"] == 1

    async def test_end_when_a_watch_opens_without_events(self) -> None:
        script: list[Answer] = [Listed("1"), Unreachable("no"), Watched(stays_open=True)]
        api = ScriptedApi(configmaps=script)
        async with following(api, "ns") as running:
            await running.is_in_trouble("no")
            confirmed = running.reflector.confirmed_at
            await eventually(lambda: not running.trouble)
            assert running.reflector.confirmed_at > confirmed
            assert running.sets == [{}]

    async def test_repeated_errors_lengthen_the_waits(self) -> None:
        api = ScriptedApi(configmaps=[Unreachable("no")] * 7)
        times: list[float] = []
        async with following(api, "ns") as running:
            while len(times) < 7:
                await eventually(lambda: len(api.asked) > len(times))
                times.append(monotonic())
            assert not running.reflector.synced
        waits = [later - earlier for earlier, later in pairwise(times)]
        assert waits[-1] > 3 * waits[0]

    async def test_unexpected_exception_is_logged_and_retried(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        again = Listed("3", [item("c")])
        api = ScriptedApi(configmaps=[Listed("1", [item("a")]), Watched([added("b", "2")]), again])
        async with following(api, "ns") as running:

            def fail() -> None:
                if len(running.sets) == 2:
                    raise ZeroDivisionError("ours")

            running.on_report = fail
            await eventually(lambda: len(api.asked) == 4)
            assert api.verbs == ["list", "watch", "list", "watch"]
            assert running.sets == [{"a": ""}, {"a": "", "b": ""}, {"c": ""}]
        (record,) = (record for record in caplog.records if record.exc_info)
        assert record.exc_info is not None
        assert isinstance(record.exc_info[1], ZeroDivisionError)

    async def test_unexpected_exception_in_first_list_counts_as_attempt(self) -> None:
        api = ScriptedApi(configmaps=[Listed("1"), Listed("2", [item("a")])])
        async with following(api, "ns") as running:

            def fail() -> None:
                if len(running.sets) == 1:
                    raise ZeroDivisionError("ours")

            running.on_report = fail
            await asyncio.wait_for(running.reflector.attempted.wait(), 5)
            assert running.trouble == "ours"
            await eventually(lambda: running.latest == {"a": ""})


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
    async def test_takes_effect_at_once_in_any_state(self, script: list[Answer]) -> None:
        before = asyncio.all_tasks()
        async with following(ScriptedApi(configmaps=script), "ns"):
            await asyncio.sleep(0.05)
        assert asyncio.all_tasks() == before
