"""Access rules, faults and the control port of the stand-in API server."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from kubernetes.aio import client

from extproc.lab.api_server.builders import pod
from extproc.lab.api_server.process import StandInApiServer
from tests.extent import PATIENCE
from tests.lab.api_server.api import (
    QUIET,
    SOON,
    Api,
    address_of,
    official_client,
    role,
)


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
        assert 0 < listed.pop("client_port") < 65536
        assert listed == {
            "verb": "list",
            "path": api.slices,
            "group": "discovery.k8s.io",
            "resource": "endpointslices",
            "namespace": api.namespace,
            "name": "",
            "query": {"limit": "5"},
            "queued": 1,
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
        [(500, "InternalError"), (503, "ServiceUnavailable")],
    )
    async def test_every_request_can_fail(self, api: Api, status: int, reason: str) -> None:
        async with api.watch() as watch:
            await api.server.faults(failing=status)
            answers = [await api.get(path) for path in (api.maps, api.slices, "/api")]
            assert [(one.status, one.json["reason"]) for one in answers] == [(status, reason)] * 3
            await api.put("a")
            assert await watch.seen() == ("ADDED", "a")
        await api.server.faults(failing=0)
        assert (await api.get(api.maps)).status == 200

    async def test_requests_beyond_the_capacity_are_refused_in_plain_text(self, api: Api) -> None:
        await api.server.faults(capacity=2, list_delay=0.5)
        async with aiohttp.ClientSession() as session:
            url = f"{api.server.url}{api.maps}"
            responses = await asyncio.gather(*(session.get(url) for _ in range(3)))
            (refused,) = (one for one in responses if one.status != 200)
            assert (refused.status, refused.content_type) == (429, "text/plain")
            assert refused.headers["Retry-After"] == "1"
            assert await refused.text() == "Too many requests, please try again later.\n"
        assert sorted(one["queued"] for one in await api.server.requests()) == [1, 2, 3]

    async def test_token_can_change(self, api: Api) -> None:
        await api.server.faults(token="new")
        assert (await api.get(api.maps)).status == 401
        await api.server.faults(token="")
        assert (await api.get(api.maps)).status == 200

    async def test_lists_can_be_slow(self, api: Api) -> None:
        await api.server.faults(list_delay=60)
        await asyncio.wait_for(api.get(f"{api.maps}/a"), 30)
        async with asyncio.timeout(PATIENCE), api.watch():
            pass
        await api.server.faults(list_delay=0.3)
        start = time.monotonic()
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
