from __future__ import annotations

import ipaddress
from pathlib import Path

import pytest
from aiohttp import web
from kubernetes.aio import config

from extproc.adapters.kubernetes.errors import (
    KubernetesError,
)
from extproc.adapters.kubernetes.http_api import KubernetesApi
from extproc.lab.api_server.process import StandInApiServer
from tests.adapters.kubernetes.http_api.servers import MAPS, StartServer, write_kubeconfig


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

    async def test_are_sent(self, start_server: StartServer) -> None:
        async def respond(request: web.Request) -> web.Response:
            return web.json_response({"sent": request.headers["Authorization"]})

        api = await start_server(respond)
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
