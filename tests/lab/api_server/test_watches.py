"""Watches of the stand-in API server, over HTTP."""

from __future__ import annotations

import json
import time

import pytest

from extproc.lab.stack.processes import until
from tests.lab.api_server.api import (
    SOON,
    Api,
)


class TestWatches:
    async def test_send_changes_after_a_version(self, api: Api) -> None:
        await api.put("before")
        async with api.watch(resourceVersion=await api.version()) as watch:
            assert await watch.is_quiet()
        async with api.watch(resourceVersion=await api.version()) as watch:
            await api.put("a")
            assert await watch.seen() == ("ADDED", "a")
            await api.put("a", value="new")
            event = await watch.event()
            assert event["type"] == "MODIFIED"
            assert (event["object"]["kind"], event["object"]["data"]) == (
                "ConfigMap",
                {"key": "new"},
            )
            await api.server.delete("ConfigMap", api.namespace, "a")
            gone = await watch.event()
            assert (gone["type"], gone["object"]["data"]) == ("DELETED", {"key": "new"})
            assert gone["object"]["metadata"]["resourceVersion"] == await api.version()

    async def test_escape_what_a_real_server_escapes(self, api: Api) -> None:
        async with api.watch() as watch:
            await api.put("a", value="<&>")
            line = await watch.line()
            assert rb'{"key":"\u003c\u0026\u003e"}' in line
            assert json.loads(line)["object"]["data"] == {"key": "<&>"}

    async def test_send_earlier_changes_at_once(self, api: Api) -> None:
        version = await api.version()
        await api.put("a", "b")
        async with api.watch(resourceVersion=version) as watch:
            assert [await watch.seen(), await watch.seen()] == [("ADDED", "a"), ("ADDED", "b")]

    @pytest.mark.parametrize("query", [{}, {"resourceVersion": "0"}, {"resourceVersion": ""}])
    async def test_begin_with_the_current_objects_without_a_version(
        self, api: Api, query: dict[str, str]
    ) -> None:
        await api.put("a", "b")
        async with api.watch(**query) as watch:
            assert [await watch.seen(), await watch.seen()] == [("ADDED", "a"), ("ADDED", "b")]
            await api.put("c")
            assert await watch.seen() == ("ADDED", "c")

    async def test_object_that_stops_matching_is_deleted(self, api: Api) -> None:
        await api.put("a", app="x")
        version = await api.version()
        async with api.watch(resourceVersion=version, labelSelector="app=x") as watch:
            await api.put("a", app="y")
            await api.put("a", app="x")
            assert [await watch.seen(), await watch.seen()] == [("DELETED", "a"), ("ADDED", "a")]

    async def test_cover_one_named_object(self, api: Api) -> None:
        async with api.watch(fieldSelector="metadata.name=a") as watch:
            await api.put("b", "a")
            assert await watch.seen() == ("ADDED", "a")

    async def test_bookmark_is_sent_before_the_end(self, api: Api) -> None:
        start = time.monotonic()
        async with api.watch(
            resourceVersion=await api.version(), timeoutSeconds="1", allowWatchBookmarks="true"
        ) as watch:
            await api.put("a")
            assert await watch.seen() == ("ADDED", "a")
            bookmark = await watch.event()
            assert bookmark == {
                "type": "BOOKMARK",
                "object": {
                    "kind": "ConfigMap",
                    "apiVersion": "v1",
                    "metadata": {"resourceVersion": await api.version()},
                },
            }
            assert time.monotonic() - start > 0.8
            assert await watch.line() == b""
        assert time.monotonic() - start >= 1

    async def test_bookmarks_are_optional(self, api: Api) -> None:
        async with api.watch(timeoutSeconds="1") as watch:
            assert await watch.line() == b""

    async def test_an_expired_version_is_an_event(self, api: Api) -> None:
        version = await api.version()
        await api.put("a")
        await api.server.compact()
        async with api.watch(resourceVersion=version) as watch:
            event = await watch.event()
            assert await watch.line() == b""
        assert event["type"] == "ERROR"
        assert event["object"]["kind"] == "Status"
        assert (event["object"]["code"], event["object"]["reason"]) == (410, "Expired")

    async def test_open_watch_survives_a_compaction(self, api: Api) -> None:
        async with api.watch() as watch:
            await api.put("a")
            await api.server.compact()
            await api.put("b")
            assert [await watch.seen(), await watch.seen()] == [("ADDED", "a"), ("ADDED", "b")]

    async def test_initial_events_end_with_a_bookmark(self, api: Api) -> None:
        await api.put("a")
        version = await api.version()
        query = {"sendInitialEvents": "true", "allowWatchBookmarks": "true"}
        async with api.watch(
            resourceVersion=version, resourceVersionMatch="NotOlderThan", **query
        ) as watch:
            assert await watch.seen() == ("ADDED", "a")
            bookmark = (await watch.event())["object"]
            assert bookmark["metadata"] == {
                "resourceVersion": version,
                "annotations": {"k8s.io/initial-events-end": "true"},
            }
            await api.put("b")
            assert await watch.seen() == ("ADDED", "b")
        assert (await api.get(api.maps, watch="1", **query)).status == 422

    async def test_invalid_watch_is_a_status(self, api: Api) -> None:
        assert (await api.get(api.maps, watch="1", resourceVersion="x")).status == 400
        assert (await api.get(api.maps, watch="true", labelSelector="a b")).status == 400

    async def test_end_if_the_client_disconnects(self, api: Api) -> None:
        before = await api.server.open_watches()
        async with api.watch():
            assert await api.server.open_watches() == before + 1
        await self.until_open(api, before)

    async def until_open(self, api: Api, number: int) -> None:
        async def reached() -> bool:
            return await api.server.open_watches() == number

        await until(reached, SOON, f"{number} open watches")
