"""Client certificates and tokens that are renewed while the sidecar runs."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import web
from aiohttp.test_utils import TestServer
from kubernetes.aio.config import incluster_config

from extproc.adapters.kubernetes.errors import ApiStatusError
from extproc.adapters.kubernetes.http_api import KubernetesApi
from tests.adapters.kubernetes.http_api.secure import HOST, NEW, OLD, SecureServer, bundle
from tests.adapters.kubernetes.http_api.servers import MAPS, MINUTE, write_kubeconfig

pytestmark = pytest.mark.usefixtures("quick")


class Clients:
    """A server that records the identity, the token and the connection of each request."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.tokens: list[str] = []
        self.connections: set[object] = set()
        self.accepted: str | None = None
        """Authorization that is accepted; None for any."""

    async def respond(self, request: web.Request) -> web.Response:
        assert request.transport is not None
        self.connections.add(request.transport)
        shown: Any = request.transport.get_extra_info("peercert")
        if shown:
            self.names.append(shown["subjectAltName"][0][1])
        token = request.headers.get("Authorization", "")
        self.tokens.append(token)
        if self.accepted not in (None, token):
            return web.json_response({"message": "Unauthorized"}, status=401)
        return web.json_response({})


@asynccontextmanager
async def serving(clients: Clients, *, tls: bool = False) -> AsyncIterator[TestServer]:
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", clients.respond)
    server = TestServer(app, host=HOST, scheme="https" if tls else "http")
    context = None
    if tls:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        OLD.issue_cert(HOST).configure_cert(context)
        NEW.configure_trust(context)
        context.verify_mode = ssl.CERT_REQUIRED
    await server.start_server(ssl=context)
    yield server
    await server.close()


def edit_kubeconfig(path: Path, cluster: dict[str, str], user: dict[str, Any]) -> None:
    document = yaml.safe_load(path.read_text())
    document["clusters"][0]["cluster"].update(cluster)
    document["users"][0]["user"] = user
    path.write_text(yaml.safe_dump(document))


class TestClientCertificate:
    async def test_is_read_again(self, tmp_path: Path) -> None:
        files = {name: tmp_path / name for name in ("ca.crt", "tls.crt", "tls.key")}
        files["ca.crt"].write_bytes(bundle(OLD))

        def show(name: str) -> None:
            issued = NEW.issue_cert(name)
            files["tls.key"].write_bytes(issued.private_key_pem.bytes())
            files["tls.crt"].write_bytes(issued.cert_chain_pems[0].bytes())

        clients = Clients()
        async with serving(clients, tls=True) as server:
            kubeconfig = write_kubeconfig(tmp_path, str(server.make_url("")))
            user = {"client-certificate": "tls.crt", "client-key": "tls.key"}
            edit_kubeconfig(kubeconfig, {"certificate-authority": "ca.crt"}, user)
            show("first.example")
            api = await KubernetesApi.connect(kubeconfig)
            await api.get(MAPS, {})
            show("second.example")
            await api.get(MAPS, {})
            # A key without its certificate: the renewal has only begun.
            files["tls.key"].write_bytes(NEW.issue_cert("x.example").private_key_pem.bytes())
            await api.get(MAPS, {})
            await api.close()
        assert clients.names == ["first.example", "second.example", "second.example"]
        assert len(clients.connections) == 2


class TestToken:
    async def test_of_a_kubeconfigs_file_is_read_again(self, tmp_path: Path) -> None:
        token, clients = tmp_path / "token", Clients()
        token.write_text("one\n")
        async with serving(clients) as server:
            kubeconfig = write_kubeconfig(tmp_path, str(server.make_url("")))
            edit_kubeconfig(kubeconfig, {}, {"tokenFile": "token"})
            api = await KubernetesApi.connect(kubeconfig)
            await api.get(MAPS, {})
            token.write_text("two\n")
            await api.get(MAPS, {})
            await api.close()
        assert clients.tokens == ["Bearer one", "Bearer two"]
        assert len(clients.connections) == 1, "a connection serves any token"

    async def test_and_authority_of_the_pod_are_read_again(
        self, secure: SecureServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        token = tmp_path / "token"
        token.write_text("one")
        port = secure.process.url.rpartition(":")[2]
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", HOST)
        monkeypatch.setenv("KUBERNETES_SERVICE_PORT", port)
        monkeypatch.setattr(incluster_config, "SERVICE_TOKEN_FILENAME", str(token))
        monkeypatch.setattr(incluster_config, "SERVICE_CERT_FILENAME", str(secure.bundle))
        api = await KubernetesApi.connect(None)
        await api.get(MAPS, {})
        secure.bundle.write_bytes(bundle(OLD, NEW))
        await secure.move_to(NEW)
        await secure.process.faults(token="two")
        token.write_text("two")
        await api.get(MAPS, {})
        await api.close()

    async def test_is_made_again_after_a_refusal(self, tmp_path: Path) -> None:
        program, clients = tmp_path / "token.json", Clients()

        def make(token: str) -> None:
            status = f'{{"token": "{token}"}}'
            kind = '"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential"'
            program.write_text(f'{{{kind}, "status": {status}}}')

        make("one")
        async with serving(clients) as server:
            kubeconfig = write_kubeconfig(tmp_path, str(server.make_url("")))
            api_version = "client.authentication.k8s.io/v1"
            run = {"apiVersion": api_version, "command": "cat", "args": [str(program)]}
            edit_kubeconfig(kubeconfig, {}, {"exec": run})
            api = await KubernetesApi.connect(kubeconfig)
            clients.accepted = "Bearer two"
            make("two")
            await asyncio.gather(*(api.get(MAPS, {}) for _ in range(5)))
            assert clients.tokens.count("Bearer two") == 5
            # Without another token, a second attempt is useless.
            clients.accepted = "Bearer three"
            clients.tokens.clear()
            with pytest.raises(ApiStatusError, match="401 Unauthorized"):
                await api.get(MAPS, {})
            assert clients.tokens == ["Bearer two"]
            make("three")
            async for _ in api.watch(MAPS, {}, MINUTE):
                pass
            assert clients.tokens == ["Bearer two", "Bearer two", "Bearer three"]
            await api.close()
