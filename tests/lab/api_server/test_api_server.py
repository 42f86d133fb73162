"""The stand-in API server as a process, over real HTTP and with kubectl."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import pytest
from kubernetes.aio import client, config
from kubernetes.aio.client.exceptions import ApiException
from kubernetes.aio.watch import Watch

from extproc.lab.api_server.__main__ import parse
from extproc.lab.api_server.builders import config_map, endpoint_slice, inference_pool, pod
from extproc.lab.api_server.process import StandInApiServer
from extproc.lab.stack.processes import until

Json = dict[str, Any]

KUBECTL = Path(sys.executable).parent / "kubectl"
MERGE = "application/merge-patch+json"
STRATEGIC_MERGE = "application/strategic-merge-patch+json"

SOON = 2.0
"""Most seconds to wait for an event, which normally takes milliseconds."""

QUIET = 0.15
"""Seconds to wait before a test concludes that nothing happens."""

_numbers = count()


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    json: Any

    @property
    def names(self) -> list[str]:
        return [item["metadata"]["name"] for item in self.json["items"]]

    @property
    def version(self) -> str:
        version: str = self.json["metadata"]["resourceVersion"]
        return version


class Watching:
    """A watch whose response has begun."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self.response = response

    async def line(self) -> bytes:
        return await asyncio.wait_for(self.response.content.readline(), SOON)

    async def event(self) -> Json:
        event: Json = json.loads(await self.line())
        return event

    async def seen(self) -> tuple[str, str]:
        """Return the type and the name of the next event."""
        event = await self.event()
        return event["type"], event["object"]["metadata"]["name"]

    async def is_quiet(self) -> bool:
        try:
            await asyncio.wait_for(self.response.content.readline(), QUIET)
        except TimeoutError:
            return True
        return False


class Api:
    """A client of the server, in a namespace that no other test uses."""

    def __init__(self, server: StandInApiServer, session: aiohttp.ClientSession) -> None:
        self.server = server
        self.session = session
        self.namespace = f"test-{next(_numbers)}"
        self.maps = f"/api/v1/namespaces/{self.namespace}/configmaps"
        self.slices = f"/apis/discovery.k8s.io/v1/namespaces/{self.namespace}/endpointslices"

    async def ask(
        self,
        method: str,
        path: str,
        body: object = None,
        content_type: str = "application/json",
        token: str = "any",
        **query: str,
    ) -> Answer:
        headers = {"Content-Type": content_type, "Authorization": f"Bearer {token}"}
        data = body if isinstance(body, bytes) else json.dumps(body)
        async with self.session.request(
            method, self.server.url + path, data=data, headers=headers, params=query
        ) as response:
            return Answer(response.status, dict(response.headers), await response.json())

    async def get(self, path: str, **query: str) -> Answer:
        return await self.ask("GET", path, **query)

    @asynccontextmanager
    async def watch(self, path: str = "", **query: str) -> AsyncIterator[Watching]:
        url = self.server.url + (path or self.maps)
        async with self.session.get(url, params={"watch": "1", **query}) as response:
            assert response.status == 200
            assert response.headers["Content-Type"] == "application/json"
            yield Watching(response)

    def map(self, name: str, value: str = "", **labels: str) -> Json:
        body = config_map(self.namespace, name, {"key": value})
        body["metadata"]["labels"] = labels
        return body

    async def put(self, *names: str, value: str = "", **labels: str) -> None:
        await self.server.apply(*(self.map(name, value, **labels) for name in names))

    async def version(self) -> str:
        return (await self.get(self.maps)).version


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandInApiServer]:
    server = StandInApiServer(tmp_path_factory.mktemp("api-server"))
    asyncio.run(server.start())
    yield server
    asyncio.run(server.stop())
    assert server.returncode() == 0
    assert server.error_output() == ""


@pytest.fixture
async def server(running: StandInApiServer) -> StandInApiServer:
    """A server without faults."""
    await running.faults(
        listening=True, frozen=False, forbidden=[], failing=0, list_delay=0, garbage=False
    )
    await running.rbac(None)
    await running.forget_requests()
    return running


@pytest.fixture
async def api(server: StandInApiServer) -> AsyncIterator[Api]:
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        api = Api(server, session)
        # Create the namespace before a test counts events.
        await api.put("first")
        await server.delete("ConfigMap", api.namespace, "first")
        yield api


def role(namespace: str, *rules: tuple[str, str, list[str], list[str]]) -> Json:
    """Return a Role with rules of (group, resource, verbs, names)."""
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "Role",
        "metadata": {"name": "r", "namespace": namespace},
        "rules": [
            {"apiGroups": [g], "resources": [r], "verbs": v, **({"resourceNames": n} if n else {})}
            for g, r, v, n in rules
        ],
    }


# These functions have no type annotations.
new_watch: Any = Watch
load_kube_config: Any = config.load_kube_config


@asynccontextmanager
async def official_client(server: StandInApiServer) -> AsyncIterator[client.ApiClient]:
    """The official asyncio client, configured by the server's kubeconfig."""
    configuration = client.Configuration()
    await load_kube_config(config_file=str(server.kubeconfig), client_configuration=configuration)
    async with client.ApiClient(configuration) as official:
        yield official


class TestObjects:
    async def test_are_created_read_changed_and_deleted(self, api: Api) -> None:
        created = await api.ask("POST", api.maps, api.map("a", "1"))
        assert created.status == 201
        changed = await api.ask("PUT", f"{api.maps}/a", {**created.json, "data": {"key": "2"}})
        assert changed.status == 200
        read = await api.get(f"{api.maps}/a")
        assert read.json == changed.json
        assert (read.json["kind"], read.json["apiVersion"]) == ("ConfigMap", "v1")
        assert read.json["data"] == {"key": "2"}
        deleted = await api.ask("DELETE", f"{api.maps}/a")
        assert (deleted.status, deleted.json["status"]) == (200, "Success")
        assert deleted.json["details"]["uid"] == created.json["metadata"]["uid"]
        assert (await api.get(f"{api.maps}/a")).status == 404

    async def test_deleting_a_pod_returns_it(self, api: Api) -> None:
        await api.server.apply(pod(api.namespace, "p", {}, "127.0.0.1"))
        deleted = await api.ask("DELETE", f"/api/v1/namespaces/{api.namespace}/pods/p")
        assert deleted.json["kind"] == "Pod"

    async def test_path_completes_the_object(self, api: Api) -> None:
        created = await api.ask("POST", api.maps, {"metadata": {"generateName": "a-"}})
        assert created.json["metadata"]["name"].startswith("a-")
        assert created.json["metadata"]["namespace"] == api.namespace
        assert created.json["kind"] == "ConfigMap"

    async def test_a_stale_put_is_a_conflict(self, api: Api) -> None:
        stale = (await api.ask("POST", api.maps, api.map("a", "1"))).json
        await api.put("a", value="2")
        answer = await api.ask("PUT", f"{api.maps}/a", stale)
        assert (answer.status, answer.json["reason"]) == (409, "Conflict")
        del stale["metadata"]["resourceVersion"]
        assert (await api.ask("PUT", f"{api.maps}/a", stale)).status == 200

    async def test_custom_resource_needs_a_version_to_be_replaced(self, api: Api) -> None:
        body = inference_pool(api.namespace, "pool", {"app": "x"}, [8000])
        pools = f"/apis/inference.networking.k8s.io/v1/namespaces/{api.namespace}/inferencepools"
        created = await api.ask("POST", pools, body)
        answer = await api.ask("PUT", f"{pools}/pool", body)
        assert (answer.status, answer.json["reason"]) == (422, "Invalid")
        assert (await api.ask("PUT", f"{pools}/pool", created.json)).status == 200
        # Custom resources do not support strategic merge patches.
        answer = await api.ask("PATCH", f"{pools}/pool", {}, content_type=STRATEGIC_MERGE)
        assert answer.status == 415
        assert (await api.ask("PATCH", f"{pools}/pool", {}, content_type=MERGE)).status == 200

    @pytest.mark.parametrize("content_type", [MERGE, STRATEGIC_MERGE])
    async def test_a_patch_is_merged(self, api: Api, content_type: str) -> None:
        await api.server.apply(config_map(api.namespace, "a", {"keep": "1", "drop": "2"}))
        patch = {"data": {"drop": None, "new": "3", "$patch": "merge"}}
        answer = await api.ask("PATCH", f"{api.maps}/a", patch, content_type=content_type)
        assert (answer.status, answer.json["data"]) == (200, {"keep": "1", "new": "3"})

    async def test_a_stale_patch_is_a_conflict(self, api: Api) -> None:
        await api.put("a")
        patch = {"metadata": {"resourceVersion": "1"}}
        answer = await api.ask("PATCH", f"{api.maps}/a", patch, content_type=MERGE)
        assert answer.status == 409

    async def test_bad_addresses_are_refused(self, api: Api) -> None:
        body = endpoint_slice("s", api.namespace, "x", [("10.0.0.300", "p", {})])
        answer = await api.ask("POST", api.slices, body)
        assert (answer.status, answer.json["reason"]) == (422, "Invalid")

    @pytest.mark.parametrize(
        ("method", "path", "body", "status", "reason"),
        [
            ("GET", "/a", None, 404, "NotFound"),
            ("PUT", "/a", {"metadata": {"name": "a"}}, 404, "NotFound"),
            ("DELETE", "/a", None, 404, "NotFound"),
            ("GET", "/a/b/c", None, 404, "NotFound"),
            ("GET", "x", None, 404, "NotFound"),
            ("DELETE", "", None, 405, "MethodNotAllowed"),
            ("POST", "/a", {}, 405, "MethodNotAllowed"),
            ("POST", "", b"{", 400, "BadRequest"),
            ("POST", "", [], 400, "BadRequest"),
            ("POST", "", {"kind": "Pod", "metadata": {"name": "a"}}, 400, "BadRequest"),
            ("POST", "", {"metadata": {"namespace": "elsewhere"}}, 400, "BadRequest"),
            ("PUT", "/a", {"metadata": {"name": "b"}}, 400, "BadRequest"),
            ("POST", "", {"metadata": {}}, 422, "Invalid"),
        ],
    )
    async def test_errors_are_status_objects(
        self, api: Api, method: str, path: str, body: object, status: int, reason: str
    ) -> None:
        answer = await api.ask(method, api.maps + path, body)
        assert (answer.status, answer.json["reason"]) == (status, reason)
        assert (answer.json["kind"], answer.json["status"]) == ("Status", "Failure")
        assert answer.json["code"] == status

    async def test_other_formats_are_refused(self, api: Api) -> None:
        answer = await api.ask("PATCH", f"{api.maps}/a", [], "application/json-patch+json")
        assert answer.status == 415
        answer = await api.ask("POST", api.maps, b"k8s\0", "application/vnd.kubernetes.protobuf")
        assert answer.status == 415


class TestLists:
    async def test_only_custom_items_have_a_kind(self, api: Api) -> None:
        await api.put("a")
        await api.server.apply(inference_pool(api.namespace, "pool", {}, [8000]))
        listed = await api.get(api.maps)
        assert (listed.json["kind"], listed.json["apiVersion"]) == ("ConfigMapList", "v1")
        assert not {"kind", "apiVersion"} & set(listed.json["items"][0])
        group = "/apis/inference.networking.k8s.io/v1"
        pools = await api.get(f"{group}/namespaces/{api.namespace}/inferencepools")
        assert pools.json["items"][0]["kind"] == "InferencePool"

    async def test_cover_one_namespace_or_all(self, api: Api) -> None:
        await api.put("a")
        await api.server.apply(config_map(f"{api.namespace}-x", "b", {}))
        assert (await api.get(api.maps)).names == ["a"]
        assert {"a", "b"} <= set((await api.get("/api/v1/configmaps")).names)

    async def test_selectors(self, api: Api) -> None:
        await api.put("a", app="x")
        await api.put("b", app="y")
        assert (await api.get(api.maps, labelSelector="app in (x,z)")).names == ["a"]
        assert (await api.get(api.maps, fieldSelector="metadata.name=b")).names == ["b"]
        for query in ({"labelSelector": "a b"}, {"fieldSelector": "spec.x=1"}):
            answer = await api.get(api.maps, **query)
            assert (answer.status, answer.json["reason"]) == (400, "BadRequest")

    async def test_pages_show_one_version(self, api: Api) -> None:
        await api.put("a", "b", "c")
        first = await api.get(api.maps, limit="2")
        assert first.names == ["a", "b"]
        assert first.json["metadata"]["remainingItemCount"] == 1
        await api.put("d")
        token = first.json["metadata"]["continue"]
        second = await api.get(api.maps, limit="2", **{"continue": token})
        assert (second.names, second.version) == (["c"], first.version)
        assert "continue" not in second.json["metadata"]

    async def test_remaining_count_is_omitted_with_selectors(self, api: Api) -> None:
        await api.put("a", "b", app="x")
        metadata = (await api.get(api.maps, limit="1", labelSelector="app")).json["metadata"]
        assert "continue" in metadata
        assert "remainingItemCount" not in metadata

    async def test_expired_continue_token_is_410(self, api: Api) -> None:
        await api.put("a", "b")
        token = (await api.get(api.maps, limit="1")).json["metadata"]["continue"]
        await api.put("c")
        await api.server.compact()
        answer = await api.get(api.maps, **{"continue": token})
        assert (answer.status, answer.json["reason"]) == (410, "Expired")

    async def test_versions(self, api: Api) -> None:
        await api.put("a")
        for version in ("0", "", "1", await api.version()):
            assert (await api.get(api.maps, resourceVersion=version)).names == ["a"]
        assert (await api.get(api.maps, resourceVersion="x")).status == 400
        answer = await api.get(api.maps, resourceVersion="1000000000")
        assert (answer.status, answer.json["reason"]) == (504, "Timeout")
        assert "Too large resource version" in answer.json["message"]

    async def test_text_is_not_escaped(self, api: Api) -> None:
        await api.put("a", value="grüße 👋")
        async with api.session.get(f"{api.server.url}{api.maps}/a") as response:
            assert "grüße 👋".encode() in await response.read()


class TestWatches:
    async def test_send_changes_after_a_version(self, api: Api) -> None:
        await api.put("before")
        async with api.watch(resourceVersion=await api.version()) as watch:
            assert await watch.is_quiet()
        async with api.watch(resourceVersion=await api.version()) as watch:
            start = time.monotonic()
            await api.put("a")
            assert await watch.seen() == ("ADDED", "a")
            assert time.monotonic() - start < 0.5
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
            assert 0.8 < time.monotonic() - start < 1
            assert await watch.line() == b""
        assert 1 <= time.monotonic() - start < 1.5

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


class TestAccess:
    async def test_any_token_is_accepted_by_default(self, api: Api) -> None:
        assert (await api.ask("GET", api.maps, token="whatever")).status == 200
        async with api.session.get(api.server.url + api.maps) as response:
            assert response.status == 200

    async def test_a_token_can_be_required(self, api: Api, tmp_path: Path) -> None:
        strict = StandInApiServer(tmp_path, ["--token", "secret"])
        await strict.start()
        try:
            other = Api(strict, api.session)
            refused = await other.ask("GET", "/api/v1/configmaps", token="wrong")
            assert (refused.status, refused.json["reason"]) == (401, "Unauthorized")
            assert (await other.ask("GET", "/api/v1/configmaps", token="secret")).status == 200
            async with official_client(strict) as official:
                listed = await client.CoreV1Api(official).list_config_map_for_all_namespaces()
                assert listed.items == []
        finally:
            await strict.stop()

    async def test_roles_allow_requests(self, api: Api) -> None:
        await api.put("models", "others")
        reader = role(
            api.namespace,
            ("discovery.k8s.io", "endpointslices", ["list", "watch"], []),
            ("", "configmaps", ["get", "list", "watch"], ["models"]),
        )
        await api.server.rbac([reader])
        assert (await api.get(api.slices)).status == 200
        assert (await api.get(f"{api.maps}/models")).status == 200
        selected = {"fieldSelector": "metadata.name=models"}
        assert (await api.get(api.maps, **selected)).names == ["models"]
        async with api.watch(**selected) as watch:
            assert await watch.seen() == ("ADDED", "models")
        assert (await api.get(f"{api.maps}/others")).status == 403
        assert (await api.get(api.maps)).status == 403
        assert (await api.get(api.maps, watch="1")).status == 403
        assert (await api.get("/apis/discovery.k8s.io/v1/endpointslices")).status == 403
        assert (await api.ask("POST", api.maps, api.map("x"))).status == 403
        # Discovery is always allowed.
        assert (await api.get("/api/v1")).status == 200
        await api.server.rbac(None)
        assert (await api.get(api.maps)).status == 200

    async def test_without_roles_everything_is_forbidden(self, api: Api) -> None:
        await api.server.rbac([])
        answer = await api.get(api.slices)
        assert (answer.status, answer.json["reason"]) == (403, "Forbidden")
        assert answer.json["message"] == (
            "endpointslices.discovery.k8s.io is forbidden: "
            'User "system:serviceaccount:default:stand-in" cannot list resource "endpointslices" '
            f'in API group "discovery.k8s.io" in the namespace "{api.namespace}"'
        )
        answer = await api.get("/api/v1/configmaps")
        assert answer.json["message"].endswith('in API group "" at the cluster scope')
        answer = await api.get(f"{api.maps}/a")
        assert answer.json["message"].startswith('configmaps "a" is forbidden')


class TestLogOfRequests:
    async def test_has_every_request(self, api: Api) -> None:
        start = time.monotonic()
        await api.get(api.slices, limit="5")
        await api.get(f"{api.maps}/none")
        async with api.watch(fieldSelector="metadata.name=a"):
            pass
        await api.get("/apis")
        listed, got, watched, discovered = await api.server.requests()
        assert start < listed.pop("at") < time.monotonic()
        assert listed == {
            "verb": "list",
            "path": api.slices,
            "group": "discovery.k8s.io",
            "resource": "endpointslices",
            "namespace": api.namespace,
            "name": "",
            "query": {"limit": "5"},
            "status": 200,
        }
        assert (got["verb"], got["name"], got["status"]) == ("get", "none", 404)
        assert (watched["verb"], watched["name"], watched["status"]) == ("watch", "a", 200)
        assert (discovered["path"], discovered["resource"]) == ("/apis", "")
        await api.server.forget_requests()
        assert await api.server.requests() == []


class TestFaults:
    async def test_closed_port_refuses_and_resets_connections(self, api: Api) -> None:
        async with api.watch() as watch:
            await api.server.faults(listening=False)
            with pytest.raises(aiohttp.ClientError):
                await watch.line()
        with pytest.raises(aiohttp.ClientConnectorError, match=r"Connect call failed|refused"):
            await api.get(api.maps)
        await api.put("a")
        objects = await api.server.objects("configmaps", api.namespace)
        assert [one["metadata"]["name"] for one in objects] == ["a"]
        url = api.server.url
        await api.server.faults(listening=True)
        assert (await api.get(api.maps)).names == ["a"]
        assert api.server.url == url

    async def test_frozen_server_accepts_requests_and_sends_nothing(self, api: Api) -> None:
        async with api.watch() as watch:
            await api.server.faults(frozen=True)
            reader, writer = await asyncio.open_connection(*address_of(api.server))
            writer.write(b"GET /api HTTP/1.1\r\nHost: x\r\n\r\n")
            await api.put("a")
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(reader.read(1), QUIET)
            assert await watch.is_quiet()
            assert (await api.server.requests())[-1]["status"] == 0
            await api.server.faults(frozen=False)
            assert await watch.seen() == ("ADDED", "a")
            assert await asyncio.wait_for(reader.readline(), SOON) == b"HTTP/1.1 200 OK\r\n"
            writer.close()

    async def test_only_open_watches_become_silent(self, api: Api) -> None:
        async with api.watch(timeoutSeconds="1", allowWatchBookmarks="1") as silent:
            await api.server.faults(silent_watches=True)
            async with api.watch() as fresh:
                await api.put("a")
                assert await fresh.seen() == ("ADDED", "a")
                assert (await api.get(api.maps)).status == 200
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(silent.line(), 1.3)

    async def test_resources_can_be_forbidden(self, api: Api) -> None:
        await api.server.faults(forbidden=["endpointslices"])
        assert (await api.get(api.slices)).status == 403
        assert (await api.get(api.slices, watch="1")).json["reason"] == "Forbidden"
        assert (await api.get(api.maps)).status == 200
        await api.server.faults(forbidden=[])
        assert (await api.get(api.slices)).status == 200

    @pytest.mark.parametrize(
        ("status", "reason"),
        [(500, "InternalError"), (503, "ServiceUnavailable"), (429, "TooManyRequests")],
    )
    async def test_every_request_can_fail(self, api: Api, status: int, reason: str) -> None:
        async with api.watch() as watch:
            await api.server.faults(failing=status)
            answers = [await api.get(path) for path in (api.maps, api.slices, "/api")]
            assert [(one.status, one.json["reason"]) for one in answers] == [(status, reason)] * 3
            assert answers[0].headers.get("Retry-After") == ("1" if status == 429 else None)
            await api.put("a")
            assert await watch.seen() == ("ADDED", "a")
        await api.server.faults(failing=0)
        assert (await api.get(api.maps)).status == 200

    async def test_lists_can_be_slow(self, api: Api) -> None:
        await api.server.faults(list_delay=0.3)
        start = time.monotonic()
        await api.get(f"{api.maps}/a")
        async with api.watch():
            pass
        assert time.monotonic() - start < 0.3
        listing = asyncio.create_task(api.get(api.maps))
        await api.put("a")
        # The list shows the state at the time of the response.
        assert (await listing).names == ["a"]
        assert time.monotonic() - start >= 0.3

    async def test_a_line_can_be_garbage(self, api: Api) -> None:
        async with api.watch() as watch:
            await api.server.faults(garbage=True)
            await api.put("a")
            broken = await watch.line()
            assert broken.startswith(b'{"type":"ADDED"')
            assert broken.endswith(b"\n")
            with pytest.raises(ValueError, match=r"line 1|Unterminated|Expecting"):
                json.loads(broken)
            await api.put("b")
            assert await watch.seen() == ("ADDED", "b")

    async def test_watches_can_be_ended(self, api: Api) -> None:
        async with api.watch() as first, api.watch(api.slices) as second:
            await api.server.drop_watches()
            assert [await first.line(), await second.line()] == [b"", b""]

    async def test_watches_can_end_within_a_line(self, api: Api) -> None:
        reader, writer = await asyncio.open_connection(*address_of(api.server))
        writer.write(f"GET {api.maps}?watch=1 HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), SOON)
        async with api.watch() as watch:
            await api.server.drop_watches(abort=True)
            with pytest.raises(aiohttp.ClientPayloadError):
                await watch.line()
        # Neither the line nor the chunked response is complete.
        rest = await asyncio.wait_for(reader.read(), SOON)
        assert rest.endswith(b'{"type":"MODIFIED","object":{"kind":"\r\n')
        writer.close()

    @pytest.mark.parametrize(
        "switches", [{"frosen": True}, {"failing": 418}, {"frozen": "yes"}, {"list_delay": -1}]
    )
    async def test_unknown_fault_is_an_error(self, api: Api, switches: dict[str, Any]) -> None:
        with pytest.raises(RuntimeError, match="no such fault"):
            await api.server.faults(**switches)


class TestControl:
    async def test_invalid_requests_are_errors(self, server: StandInApiServer) -> None:
        with pytest.raises(RuntimeError, match="no such kind"):
            await server.apply({"kind": "Secret"})
        with pytest.raises(RuntimeError, match="wrong namespace"):
            await server.apply({"kind": "ConfigMap", "metadata": {"name": "a"}})
        with pytest.raises(RuntimeError, match="not found"):
            await server.delete("ConfigMap", "ns", "none")
        with pytest.raises(RuntimeError, match="no such resource"):
            await server.objects("secrets")
        with pytest.raises(RuntimeError, match="Role objects"):
            await server.rbac([{"kind": "RoleBinding"}])

    async def test_applies_an_object_with_its_version(self, api: Api) -> None:
        await api.put("a", value="1")
        [body] = await api.server.objects("configmaps", api.namespace)
        await api.put("a", value="2")
        await api.server.apply(body)
        [again] = await api.server.objects("configmaps", api.namespace)
        assert again["data"] == {"key": "1"}
        assert int(again["metadata"]["resourceVersion"]) == int(await api.version())

    async def test_applies_a_pod_that_is_being_deleted(self, api: Api) -> None:
        await api.server.apply(pod(api.namespace, "p", {"app": "x"}, "127.0.0.1", deleting=True))
        [body] = await api.server.objects("pods", api.namespace)
        assert body["metadata"]["deletionTimestamp"]
        assert body["status"]["podIP"] == "127.0.0.1"


async def kubectl(server: StandInApiServer, *arguments: str, stdin: str = "") -> str:
    """Return the output of kubectl, followed by an exit code other than 0."""
    directory = server.kubeconfig.parent / "kubectl"
    process = await asyncio.create_subprocess_exec(
        *(str(KUBECTL), "--kubeconfig", str(server.kubeconfig), "--cache-dir", str(directory)),
        *arguments,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    try:
        output, _ = await asyncio.wait_for(process.communicate(stdin.encode()), 10)
    finally:
        if process.returncode is None:
            process.kill()
    return output.decode() + (f"exit {process.returncode}" if process.returncode else "")


class TestKubectl:
    async def test_applies_reads_changes_and_deletes(self, api: Api) -> None:
        slices = [("127.0.0.1", "p", {"ready": True})]
        for resource, name, body in (
            ("configmaps", "configmap/a", api.map("a", "1")),
            ("pods", "pod/a", pod(api.namespace, "a", {"app": "x"}, "127.0.0.1")),
            (
                "endpointslices",
                "endpointslice.discovery.k8s.io/a",
                endpoint_slice("s", api.namespace, "a", slices),
            ),
            (
                "inferencepools",
                "inferencepool.inference.networking.k8s.io/a",
                inference_pool(api.namespace, "a", {"app": "x"}, [8000]),
            ),
        ):
            apply = ("apply", "--validate=false", "-f", "-")
            own = ("-n", api.namespace)
            assert await kubectl(api.server, *apply, stdin=json.dumps(body)) == f"{name} created\n"
            assert (
                await kubectl(api.server, *apply, stdin=json.dumps(body)) == f"{name} unchanged\n"
            )
            body["metadata"]["labels"] = {"new": "label"}
            changed = await kubectl(api.server, *apply, stdin=json.dumps(body))
            assert changed == f"{name} configured\n"
            assert (await kubectl(api.server, *own, "get", resource, "-l", "new=label")).split()[
                :2
            ] == ["NAME", "AGE"]
            read = json.loads(await kubectl(api.server, *own, "get", resource, "a", "-o", "json"))
            assert read["metadata"]["labels"] == {"new": "label"}
            assert "deleted" in await kubectl(api.server, *own, "delete", resource, "a")
            gone = await kubectl(api.server, *own, "get", resource, "a")
            assert "(NotFound)" in gone
            assert gone.endswith("exit 1")

    async def test_watches(self, api: Api) -> None:
        await api.put("a")
        watching = asyncio.create_task(
            kubectl(
                api.server,
                *("-n", api.namespace, "get", "configmaps", "--watch", "-o", "name"),
                "--request-timeout=1s",
            )
        )
        await until(lambda: self.watches(api), SOON, "kubectl to watch")
        await api.put("b")
        lines = (await watching).splitlines()
        assert lines[:2] == ["configmap/a", "configmap/b"]

    async def watches(self, api: Api) -> bool:
        return any(one["verb"] == "watch" for one in await api.server.requests())

    async def test_prints_forbidden_requests(self, api: Api) -> None:
        await api.server.rbac([])
        told = await kubectl(api.server, "-n", api.namespace, "get", "pods")
        assert "Error from server (Forbidden): pods is forbidden" in told


@pytest.fixture
async def official(server: StandInApiServer) -> AsyncIterator[client.ApiClient]:
    async with official_client(server) as found:
        yield found


class TestOfficialClient:
    async def test_reads_and_writes(self, api: Api, official: client.ApiClient) -> None:
        core, discovery = client.CoreV1Api(official), client.DiscoveryV1Api(official)
        body = client.V1ConfigMap(metadata=client.V1ObjectMeta(name="a"), data={"key": "1"})
        created = await core.create_namespaced_config_map(api.namespace, body)
        created.data = {"key": "2"}
        await core.replace_namespaced_config_map("a", api.namespace, created)
        with pytest.raises(ApiException) as error:
            await core.replace_namespaced_config_map("a", api.namespace, created)
        assert error.value.status == 409
        await core.patch_namespaced_config_map("a", api.namespace, {"data": {"other": "3"}})
        read = await core.read_namespaced_config_map("a", api.namespace)
        assert read.data == {"key": "2", "other": "3"}
        await core.delete_namespaced_config_map("a", api.namespace)
        ready = [("127.0.0.1", "p", {"ready": True})]
        await api.server.apply(endpoint_slice("s", api.namespace, "x", ready))
        slices = await discovery.list_namespaced_endpoint_slice(
            api.namespace, label_selector="kubernetes.io/service-name=s"
        )
        [endpoint] = slices.items[0].endpoints or []
        assert endpoint.addresses == ["127.0.0.1"]

    async def test_writes_events(self, api: Api, official: client.ApiClient) -> None:
        event = client.CoreV1Event(
            metadata=client.V1ObjectMeta(generate_name="a."),
            involved_object=client.V1ObjectReference(kind="ConfigMap", name="a"),
            reason="Because",
            message="why not",
            type="Warning",
        )
        await client.CoreV1Api(official).create_namespaced_event(api.namespace, event)
        [found] = await api.server.objects("events", api.namespace)
        assert found["reason"] == "Because"
        assert found["metadata"]["name"].startswith("a.")

    async def test_reads_pools(self, api: Api, official: client.ApiClient) -> None:
        await api.server.apply(inference_pool(api.namespace, "pool", {"app": "x"}, [8000]))
        pool: Any = await client.CustomObjectsApi(official).get_namespaced_custom_object(
            "inference.networking.k8s.io", "v1", api.namespace, "inferencepools", "pool"
        )
        assert pool["spec"]["targetPorts"] == [{"number": 8000}]

    async def test_watches_changes(self, api: Api, official: client.ApiClient) -> None:
        await api.put("a")
        types = []
        async with new_watch() as watch:
            async for event in watch.stream(
                client.CoreV1Api(official).list_namespaced_config_map,
                api.namespace,
                timeout_seconds=1,
                allow_watch_bookmarks=True,
            ):
                types.append(event["type"])
                if len(types) == 1:
                    await api.put("a", value="new")
            assert types == ["ADDED", "MODIFIED", "BOOKMARK"]
            assert watch.resource_version == await api.version()

    async def test_watch_raises_410(self, api: Api, official: client.ApiClient) -> None:
        version = await api.version()
        await api.put("a")
        await api.server.compact()
        events = new_watch().stream(
            client.CoreV1Api(official).list_namespaced_config_map,
            api.namespace,
            resource_version=version,
            timeout_seconds=5,
        )
        with pytest.raises(ApiException) as error:
            await anext(events)
        assert error.value.status == 410


class TestScale:
    async def test_fifty_watches_receive_a_thousand_writes(self, api: Api) -> None:
        version = await api.version()

        async def count_events() -> int:
            async with api.watch(resourceVersion=version) as watch:
                for number in range(1000):
                    event = await watch.event()
                    assert event["type"] == "ADDED", number
            return 1000

        async def write(names: Iterator[int]) -> None:
            for i in names:
                assert (await api.ask("POST", api.maps, api.map(f"m{i}", "x" * 100))).status == 201

        before = await api.server.open_watches()
        watching = [asyncio.create_task(count_events()) for _ in range(50)]

        async def all_open() -> bool:
            return await api.server.open_watches() == before + 50

        await until(all_open, SOON, "fifty watches")
        names = iter(range(1000))
        await asyncio.gather(*(write(names) for _ in range(10)))
        assert await asyncio.gather(*watching) == [1000] * 50

    async def test_a_thousand_endpoints_are_listed_and_watched(self, api: Api) -> None:
        def slices(ready: bool) -> list[Json]:
            return [
                endpoint_slice(
                    "s",
                    api.namespace,
                    f"s-{i:02}",
                    [(f"10.0.{i}.{j}", f"p-{i}-{j}", {"ready": ready}) for j in range(84)],
                )
                for i in range(12)
            ]

        await api.server.apply(*slices(ready=True))
        start = time.monotonic()
        listed = await api.get(api.slices)
        assert sum(len(item["endpoints"]) for item in listed.json["items"]) == 1008
        async with api.watch(api.slices, resourceVersion=listed.version) as watch:
            await api.server.apply(*slices(ready=False))
            for i in range(12):
                assert await watch.seen() == ("MODIFIED", f"s-{i:02}")
        assert time.monotonic() - start < 1


class TestProcess:
    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
    async def test_stops_cleanly_with_open_watches(
        self, number: signal.Signals, tmp_path: Path
    ) -> None:
        server = StandInApiServer(tmp_path)
        await server.start()
        async with aiohttp.ClientSession() as session:
            api = Api(server, session)
            async with api.watch() as watch:
                server.signal(number)
                assert await watch.line() == b""
        assert await server.wait(5) == 0
        assert server.error_output() == ""

    async def test_stops_while_frozen(self, tmp_path: Path) -> None:
        server = StandInApiServer(tmp_path)
        await server.start()
        async with aiohttp.ClientSession() as session, Api(server, session).watch():
            await server.faults(frozen=True)
            server.signal(signal.SIGTERM)
            assert await server.wait(5) == 0
        assert server.error_output() == ""

    async def test_restarts_empty_on_the_same_port(self, api: Api, tmp_path: Path) -> None:
        server = StandInApiServer(tmp_path)
        await server.start()
        port = address_of(server)[1]
        await server.kill()
        again = StandInApiServer(tmp_path, ["--port", str(port)])
        await again.start()
        try:
            assert address_of(again)[1] == port
            assert (await Api(again, api.session).get("/api/v1/configmaps")).names == []
        finally:
            await again.stop()

    async def test_keeps_a_closed_port_reserved(self, server: StandInApiServer) -> None:
        await server.faults(listening=False)
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind(address_of(server))

    async def test_reports_a_used_port_in_one_line(self, server: StandInApiServer) -> None:
        port = str(address_of(server)[1])
        command = [sys.executable, "-m", "extproc.lab.api_server", "--port", port]
        result = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
        assert result.returncode == 1
        assert result.stderr.startswith("stand-in API server: ")
        assert result.stderr.count("\n") == 1

    @pytest.mark.parametrize("arguments", [["--port", "x"], ["--control-port", "70000"]])
    def test_refuses_invalid_arguments(self, arguments: list[str]) -> None:
        with pytest.raises(SystemExit) as exit_:
            parse(arguments)
        assert exit_.value.code == 2

    def test_announces_ports_that_the_kernel_chooses(self) -> None:
        assert parse([]).announce
        assert not parse(["--port", "8001", "--control-port", "8002"]).announce
        assert parse(["--port", "8001", "--control-port", "8002", "--announce"]).announce


def address_of(server: StandInApiServer) -> tuple[str, int]:
    host, _, port = server.url.removeprefix("http://").partition(":")
    return host, int(port)
