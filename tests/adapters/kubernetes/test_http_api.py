from __future__ import annotations

import asyncio
import ipaddress
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
import yaml
from aiohttp import web
from aiohttp.test_utils import TestServer
from kubernetes.aio import config

from extproc.adapters.kubernetes import http_api as kubernetes_api
from extproc.adapters.kubernetes.api import OPENED
from extproc.adapters.kubernetes.errors import (
    ApiStatusError,
    KubernetesError,
    MalformedResponse,
    Unreachable,
)
from extproc.adapters.kubernetes.http_api import KubernetesApi
from extproc.adapters.kubernetes.objects import Json
from extproc.lab.api_server.builders import config_map
from extproc.lab.api_server.process import StandInApiServer

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Answering = Callable[[Handler], Awaitable[KubernetesApi]]

MAPS = "/api/v1/namespaces/ns/configmaps"


def write_kubeconfig(directory: Path, server: str) -> Path:
    path = directory / "kubeconfig.yaml"
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "c",
        "clusters": [{"name": "c", "cluster": {"server": server}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "users": [{"name": "u", "user": {"token": "secret"}}],
    }
    path.write_text(yaml.safe_dump(document))
    return path


@pytest.fixture
async def answering(tmp_path: Path) -> AsyncIterator[Answering]:
    """Return a function that starts a server with one handler, and returns its API."""
    servers: list[TestServer] = []
    apis: list[KubernetesApi] = []

    async def start(handler: Handler) -> KubernetesApi:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", handler)
        server = TestServer(app)
        await server.start_server()
        servers.append(server)
        api = await KubernetesApi.connect(write_kubeconfig(tmp_path, str(server.make_url(""))))
        apis.append(api)
        return api

    yield start
    for api in apis:
        await api.close()
    for server in servers:
        await server.close()


def with_status(status: int, text: str) -> Handler:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(status=status, text=text)

    return answer


class TestCredentials:
    @pytest.fixture(autouse=True)
    def _outside_a_pod(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
        monkeypatch.setattr(config, "KUBE_CONFIG_DEFAULT_LOCATION", "/nonexistent/default")

    async def refused(self, kubeconfig: Path | None) -> str:
        with pytest.raises(KubernetesError) as refused:
            await KubernetesApi.connect(kubeconfig)
        message = str(refused.value)
        assert message.startswith("no credentials for Kubernetes in ")
        assert "\n" not in message
        return message

    async def test_come_from_the_file(self, server: StandInApiServer) -> None:
        api = await KubernetesApi.connect(server.kubeconfig)
        assert (await api.get("/api/v1/configmaps", {}))["kind"] == "ConfigMapList"
        await api.close()

    async def test_default_to_those_of_kubectl(
        self, server: StandInApiServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        places = f"/nonexistent/first:{server.kubeconfig}"
        monkeypatch.setattr(config, "KUBE_CONFIG_DEFAULT_LOCATION", places)
        api = await KubernetesApi.connect(None)
        assert (await api.get("/api/v1/configmaps", {}))["kind"] == "ConfigMapList"
        await api.close()

    async def test_come_from_the_pod_in_a_pod(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.96.0.1")
        monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
        assert "in this pod: Service token" in await self.refused(None)

    async def test_missing_ones_are_reported(self, caplog: pytest.LogCaptureFixture) -> None:
        assert "/nonexistent/k: there is no such file" in await self.refused(Path("/nonexistent/k"))
        assert "/nonexistent/default: there is no such file" in await self.refused(None)
        assert caplog.records == [], "an error that is raised is not logged"

    @pytest.mark.parametrize(
        "text", ["", "x", "[]", "{", "current-context: c", "\x00", "clusters: 7\nusers: {}"]
    )
    async def test_in_a_malformed_file_are_refused(self, text: str, tmp_path: Path) -> None:
        path = tmp_path / "kubeconfig"
        path.write_text(text)
        assert f"in {path}: " in await self.refused(path)
        assert f"in {tmp_path}: " in await self.refused(tmp_path)

    async def test_for_an_impossible_server_are_refused(self, tmp_path: Path) -> None:
        assert "port" in await self.refused(write_kubeconfig(tmp_path, "https://host:port"))

    async def test_are_sent(self, answering: Answering) -> None:
        async def answer(request: web.Request) -> web.Response:
            return web.json_response({"sent": request.headers["Authorization"]})

        api = await answering(answer)
        assert await api.get(MAPS, {}) == {"sent": "Bearer secret"}


class TestAddresses:
    @pytest.mark.parametrize(
        ("server", "ip", "port"),
        [
            ("https://10.96.0.1", "10.96.0.1", 443),
            ("http://10.96.0.1", "10.96.0.1", 80),
            ("https://10.96.0.1:6443/prefix", "10.96.0.1", 6443),
            ("https://[2001:db8::1]:6443", "2001:db8::1", 6443),
            ("https://[::ffff:10.96.0.1]", "10.96.0.1", 443),
        ],
    )
    async def test_come_from_the_url(self, server: str, ip: str, port: int, tmp_path: Path) -> None:
        api = await KubernetesApi.connect(write_kubeconfig(tmp_path, server))
        assert await api.addresses() == {(ipaddress.ip_address(ip), port)}

    async def test_come_from_the_host_name_of_the_url(self, tmp_path: Path) -> None:
        api = await KubernetesApi.connect(write_kubeconfig(tmp_path, "https://localhost:6443"))
        found = await api.addresses()
        assert found
        assert all(ip.is_loopback and port == 6443 for ip, port in found)

    @pytest.mark.parametrize("server", ["https://api.invalid", "https://no..name"])
    async def test_of_an_unknown_name_are_none(self, server: str, tmp_path: Path) -> None:
        api = await KubernetesApi.connect(write_kubeconfig(tmp_path, server))
        assert await api.addresses() == set()


class TestResponse:
    @pytest.mark.parametrize(
        ("status", "text", "shown"),
        [
            (403, '{"message": "no\\nway"}', "403 no"),
            (410, '{"reason": "Expired"}', "410 Expired"),
            (503, "<html>busy</html>", "503 no reason"),
            (500, "", "500 no reason"),
            (404, '"x"', "404 no reason"),
            (429, json.dumps({"message": "x" * 5000}), "429 " + "x" * 500),
        ],
    )
    async def test_error_status_has_the_servers_message(
        self, status: int, text: str, shown: str, answering: Answering
    ) -> None:
        api = await answering(with_status(status, text))
        with pytest.raises(ApiStatusError) as got:
            await api.get(MAPS, {})
        assert (got.value.code, str(got.value)) == (status, shown)
        with pytest.raises(ApiStatusError) as got:
            await api.create(MAPS, {})
        assert str(got.value) == shown
        with pytest.raises(ApiStatusError) as got:
            await anext(api.watch(MAPS, {}, 5))
        assert str(got.value) == shown

    @pytest.mark.parametrize(
        "text", ["", "[]", "7", "{", "[" * 100_000, "9" * 5000, '{"a": \udc00']
    )
    async def test_other_than_an_object_is_malformed(self, text: str, answering: Answering) -> None:
        async def answer(_: web.Request) -> web.Response:
            return web.Response(body=text.encode(errors="surrogatepass"))

        api = await answering(answer)
        with pytest.raises(MalformedResponse):
            await api.get(MAPS, {})

    async def test_missing_one_is_unreachable(
        self, answering: Answering, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(kubernetes_api, "READ_SECONDS", 0.05)

        async def answer(_: web.Request) -> web.Response:
            await asyncio.sleep(60)
            raise AssertionError

        api = await answering(answer)
        with pytest.raises(Unreachable, match="no complete response in time"):
            await api.get(MAPS, {})
        with pytest.raises(Unreachable, match="no complete response in time"):
            await anext(api.watch(MAPS, {}, 0.05))

    async def test_closed_port_is_unreachable(self, tmp_path: Path) -> None:
        api = await KubernetesApi.connect(write_kubeconfig(tmp_path, "http://127.0.0.1:1"))
        with pytest.raises(Unreachable) as got:
            await api.get(MAPS, {})
        assert "\n" not in str(got.value)
        await api.close()

    async def test_query_is_encoded(self, answering: Answering) -> None:
        async def answer(request: web.Request) -> web.Response:
            return web.json_response(dict(request.query))

        api = await answering(answer)
        query = {"labelSelector": "a/b=c,d=e+f g&h%20", "limit": 500}
        assert await api.get(MAPS, query) == {**query, "limit": "500"}


class TestWatch:
    async def watched(self, answering: Answering, *chunks: bytes) -> list[Json]:
        async def answer(request: web.Request) -> web.StreamResponse:
            assert request.query["watch"] == "true"
            response = web.StreamResponse()
            await response.prepare(request)
            for chunk in chunks:
                await response.write(chunk)
            return response

        api = await answering(answer)
        opened, *events = [event async for event in api.watch(MAPS, {"limit": 1}, 5)]
        assert opened is OPENED
        return events

    async def test_has_an_event_on_each_line_in_any_chunks(self, answering: Answering) -> None:
        assert await self.watched(answering, b'{"a"', b': 1}\n{"b": 2}\n{"', b'c": 3}\n') == [
            {"a": 1},
            {"b": 2},
            {"c": 3},
        ]

    async def test_can_be_empty(self, answering: Answering) -> None:
        assert await self.watched(answering) == []

    async def test_can_carry_the_largest_object(self, answering: Answering) -> None:
        large = json.dumps({"data": "x" * 1_500_000}).encode() + b"\n"
        assert len(await self.watched(answering, large, large)) == 2

    @pytest.mark.parametrize("line", [b"{\n", b"\n", b"[]\n", b'{"a"', b"x" * 6_000_000])
    async def test_malformed_event_is_refused(self, line: bytes, answering: Answering) -> None:
        with pytest.raises(MalformedResponse):
            await self.watched(answering, line)

    async def test_broken_connection_is_unreachable(self, answering: Answering) -> None:
        async def answer(request: web.Request) -> web.StreamResponse:
            response = web.StreamResponse()
            await response.prepare(request)
            await response.write(b'{"a": 1}\n{"b"')
            assert request.transport is not None
            request.transport.close()
            return response

        api = await answering(answer)
        events = api.watch(MAPS, {}, 5)
        assert await anext(events) is OPENED
        assert await anext(events) == {"a": 1}
        with pytest.raises(Unreachable):
            await anext(events)


async def test_creates_an_object(server: StandInApiServer, api: KubernetesApi) -> None:
    await api.create("/api/v1/namespaces/created/configmaps", config_map("created", "a", {}))
    (found,) = await server.objects("configmaps", "created")
    assert found["metadata"]["name"] == "a"
