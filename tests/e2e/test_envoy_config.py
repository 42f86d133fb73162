"""A gateway with other services, after `extproc envoy-config --into`."""

from __future__ import annotations

import base64
import hmac
import json
import ssl
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
import trustme
import yaml
from aiohttp import web

from extproc.cli import main
from extproc.core.request.paths import INFERENCE_PATHS
from extproc.lab.stack.envoy import Envoy
from extproc.lab.stack.processes import free_port, until
from extproc.lab.stack.sidecar import FileSidecar
from extproc.lab.stack.stand_in_fleet import StandInFleet
from tests.e2e.forked import ForkedFileSidecar, ForkedFleet
from tests.e2e.http3 import http3
from tests.e2e.scene import CHAT, MODEL, chat
from tests.envoy.texts import CATCH_ALL, ROUTER, configuration, listener, merged
from tests.extent import PATIENCE

NOT_ROUTED = {
    "/api/chat",
    "/vertex_generate",
    "/v1/decisions",
    "/v1/realtime",
    "/v1/realtime/video",
    "/v1/realtime/robot/openpi",
    "/v1/duplex",
    "/v1/video/chat/stream",
}
"""Paths that the recommended configuration does not route."""

ENGINE_PATHS = tuple(path for path in INFERENCE_PATHS if path not in NOT_ROUTED and "*" not in path)

RBAC = "type.googleapis.com/envoy.extensions.filters.http.rbac.v3"
TOKEN = f"""\
- name: rbac
  typed_config:
    "@type": {RBAC}.RBAC
    rules:
      action: ALLOW
      policies:
        token:
          permissions: [{{any: true}}]
          principals: [{{header: {{name: x-token, string_match: {{exact: secret}}}}}}]
"""
OPEN = f'  typed_per_filter_config: {{rbac: {{"@type": {RBAC}.RBACPerRoute}}}}\n'
OFF = (
    "  typed_per_filter_config:\n    rbac:\n"
    '      "@type": type.googleapis.com/envoy.config.route.v3.FilterConfig\n      disabled: true\n'
)
PROTECTED = {
    "public models": "- match: {prefix: /v1/models}\n  route: {cluster: app}\n" + OFF + CATCH_ALL,
    "public embeddings": "- match: {path: /v1/embeddings}\n  route: {cluster: app}\n"
    + OPEN
    + CATCH_ALL,
    "public catch-all": "- match: {path_separated_prefix: /v1/chat}\n  route: {cluster: app}\n"
    + CATCH_ALL
    + OPEN,
    "regular expression": '- match: {safe_regex: {regex: "/v1/(messages|models)(/.*)?"}}\n'
    "  route: {cluster: app}\n" + OPEN + CATCH_ALL,
}

SHOP = Path(__file__).parents[1] / "envoy" / "examples" / "shop.yaml"


@dataclass(frozen=True)
class Gateway:
    """The shop's Envoy, its sidecar and the model servers."""

    envoy: Envoy
    sidecar: FileSidecar
    replicas: StandInFleet
    ca: Path

    def client(self, *, http2: bool = False) -> httpx.AsyncClient:
        return httpx.AsyncClient(
            base_url=f"https://localhost:{self.envoy.ports['tls']}",
            http1=not http2,
            http2=http2,
            verify=ssl.create_default_context(cafile=str(self.ca)),
            timeout=30,
        )

    async def decided(self, lines: int) -> list[dict[str, object]]:
        """Return the access log lines with a decision, once there are at least `lines`."""

        def found() -> list[dict[str, object]]:
            return [line for line in self.envoy.access_log() if line["endpoint"]]

        await until(lambda: len(found()) >= lines, PATIENCE, f"{lines} decisions in the access log")
        return found()


def token() -> str:
    """Return a token that the shop's JWT filter accepts."""

    def part(text: bytes) -> bytes:
        return base64.urlsafe_b64encode(text).rstrip(b"=")

    head = part(b'{"alg": "HS256", "kid": "1"}')
    claims = part(json.dumps({"iss": "shop", "exp": int(time.time()) + 3600}).encode())
    signature = hmac.digest(b"shop-shop-shop-shop-shop-shop-sh", head + b"." + claims, "sha256")
    return b".".join([head, claims, part(signature)]).decode()


AUTHORIZED = {"authorization": f"Bearer {token()}"}


async def shop_server(cleanup: AsyncExitStack) -> int:
    async def respond(request: web.Request) -> web.Response:
        return web.Response(text=f"shop {request.path}")

    application = web.Application()
    application.router.add_route("*", "/{path:.*}", respond)
    runner = web.AppRunner(application)
    await runner.setup()
    cleanup.push_async_callback(runner.cleanup)
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port: int = runner.addresses[0][1]
    return port


def certificates(directory: Path) -> Path:
    ca = trustme.CA()
    issued = ca.issue_cert("localhost")
    issued.private_key_pem.write_to_path(str(directory / "key.pem"))
    issued.cert_chain_pems[0].write_to_path(str(directory / "cert.pem"))
    ca.cert_pem.write_to_path(str(directory / "ca.pem"))
    return directory / "ca.pem"


def shop_config(directory: Path, shop_port: int) -> Path:
    """Write the shop's configuration with free ports and return its path."""
    text = SHOP.read_text().replace("/etc/shop/", f"{directory}/")
    text = text.replace("port_value: 7000", f"port_value: {shop_port}")
    for taken in ("9901", "8080", "8443"):
        text = text.replace(f"port_value: {taken}", "port_value: 0")
    path = directory / "shop.yaml"
    path.write_text(text)
    return path


async def gateway_with(
    tmp_path: Path,
    cleanup: AsyncExitStack,
    more_endpoints: Sequence[str] = (),
    flags: Sequence[str] = (),
) -> Gateway:
    replicas = ForkedFleet(2, tmp_path, ("--time-scale", "50"))
    cleanup.push_async_callback(replicas.kill)
    await replicas.start()
    endpoints = [*replicas.addresses, *more_endpoints]
    sidecar = ForkedFileSidecar({"models": [{"name": MODEL, "endpoints": endpoints}]}, tmp_path)
    cleanup.push_async_callback(sidecar.kill)
    await sidecar.start()
    ca = certificates(tmp_path)
    config = shop_config(tmp_path, await shop_server(cleanup))
    command = ["envoy-config", "--into", str(config), "--sidecar", sidecar.listen]
    assert main([*command, "--models", str(sidecar.models), *flags]) == 0
    envoy = Envoy(yaml.safe_load(config.read_text()), tmp_path)
    cleanup.push_async_callback(envoy.kill)
    await envoy.start()
    return Gateway(envoy, sidecar, replicas, ca)


@pytest.fixture
async def cleanup() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as stack:
        yield stack


async def assert_shop_responds(client: httpx.AsyncClient) -> None:
    for path, text in {"/app": "shop /app", "/healthz": "fine", "/cart": "shop /cart"}.items():
        response = await client.get(path)
        assert (response.status_code, response.text) == (200, text)


@pytest.mark.parametrize("http2", [False, True], ids=["http1", "http2"])
async def test_only_llm_requests_get_a_decision(
    tmp_path: Path, cleanup: AsyncExitStack, http2: bool
) -> None:
    gateway = await gateway_with(tmp_path, cleanup)
    async with gateway.client(http2=http2) as client:
        await assert_shop_responds(client)
        for number in range(4):
            response = await client.post(CHAT, json=chat(f"user {number}"), headers=AUTHORIZED)
            assert response.status_code == 200, response.text
            assert response.http_version == ("HTTP/2" if http2 else "HTTP/1.1")
        decided = await gateway.decided(4)
        assert {line["endpoint"] for line in decided} <= set(gateway.replicas.addresses)
        assert {line["route"] for line in decided} == {"chosen"}
        assert len(decided) == 4  # and no line of the shop's requests


async def test_a_token_is_still_required(tmp_path: Path, cleanup: AsyncExitStack) -> None:
    gateway = await gateway_with(tmp_path, cleanup)
    async with gateway.client() as client:
        assert (await client.post(CHAT, json=chat("hello"))).status_code == 401
        assert (await client.get("/v1/models")).status_code == 401
        forged = {"x-target-endpoint": gateway.replicas.addresses[0]}
        assert (await client.post(CHAT, json=chat("hello"), headers=forged)).status_code == 401


async def test_requests_succeed_while_the_sidecar_is_dead(
    tmp_path: Path, cleanup: AsyncExitStack
) -> None:
    gateway = await gateway_with(tmp_path, cleanup)
    await gateway.sidecar.kill()
    async with gateway.client() as client:
        await assert_shop_responds(client)
        for number in range(4):
            response = await client.post(CHAT, json=chat(f"user {number}"), headers=AUTHORIZED)
            assert response.status_code == 200, response.text
    await until(lambda: len(gateway.envoy.access_log()) >= 7, PATIENCE, "7 log lines")
    routes = [line["route"] for line in gateway.envoy.access_log() if line["path"] == CHAT]
    assert routes == ["fallback"] * 4


async def test_requests_succeed_while_an_endpoint_is_dead(
    tmp_path: Path, cleanup: AsyncExitStack
) -> None:
    dead = f"127.0.0.1:{free_port()}"
    gateway = await gateway_with(tmp_path, cleanup, [dead])
    async with gateway.client() as client:
        for number in range(24):
            response = await client.post(CHAT, json=chat(f"user {number}"), headers=AUTHORIZED)
            assert response.status_code == 200, response.text
    assert dead in {line["endpoint"] for line in await gateway.decided(24)}


async def test_only_llm_paths_below_the_prefix_get_a_decision(
    tmp_path: Path, cleanup: AsyncExitStack
) -> None:
    gateway = await gateway_with(tmp_path, cleanup, flags=["--prefix", "/team"])
    async with gateway.client() as client:
        response = await client.post(f"/team{CHAT}", json=chat("hello"))
        assert response.status_code == 200, response.text
        assert response.json()["choices"]
        shop = await client.post(CHAT, json=chat("hello"), headers=AUTHORIZED)
        assert shop.text == f"shop {CHAT}"
        (line,) = await gateway.decided(1)
        assert line["endpoint"] in gateway.replicas.addresses
        await gateway.sidecar.kill()
        response = await client.post(f"/team{CHAT}", json=chat("hello"))
        assert response.status_code == 200, response.text


async def test_requests_over_http3_get_a_decision(tmp_path: Path, cleanup: AsyncExitStack) -> None:
    gateway = await gateway_with(tmp_path, cleanup)
    port = gateway.envoy.ports["quic"]
    healthy = await http3(port, gateway.ca, "GET", "/healthz", b"", {})
    assert (healthy.status, healthy.body) == (200, b"fine")
    body = json.dumps(chat("hello")).encode()
    refused = await http3(port, gateway.ca, "POST", CHAT, body, {})
    assert refused.status == 401
    headers = {**AUTHORIZED, "content-type": "application/json"}
    response = await http3(port, gateway.ca, "POST", CHAT, body, headers)
    assert response.status == 200, response.body
    assert json.loads(response.body)["choices"]
    _, metrics = await gateway.sidecar.get("/metrics")
    assert f'extproc_requests_total{{model="{MODEL}",outcome="routed"' in metrics, metrics


async def test_every_path_of_an_engine_gets_a_decision(
    tmp_path: Path, cleanup: AsyncExitStack
) -> None:
    gateway = await gateway_with(tmp_path, cleanup)
    body = {**chat("hello"), "prompt": "hello", "input": "hello", "query": "hello"}
    async with gateway.client() as client:
        for path in ENGINE_PATHS:
            await client.post(path, json=body, headers=AUTHORIZED)
        for path in ("/api/rerank", "/v1/shop", "/items?sort=/score"):
            response = await client.post(path, json=body, headers=AUTHORIZED)
            assert response.text == f"shop {path.partition('?')[0]}"
    decided = await gateway.decided(len(ENGINE_PATHS))
    assert sorted(str(line["path"]) for line in decided) == sorted(ENGINE_PATHS)


async def statuses(config: str, directory: Path) -> dict[str, int]:
    """Return the status of a request without a token to each path."""
    directory.mkdir()
    async with AsyncExitStack() as cleanup:
        admin = {"address": {"socket_address": {"address": "127.0.0.1", "port_value": 0}}}
        envoy = Envoy({"admin": admin, **yaml.safe_load(config)}, directory)
        cleanup.push_async_callback(envoy.kill)
        await envoy.start()
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{envoy.ports['edge']}") as client:
            responses = {
                path: await client.post(path, json=chat("hello"), params={"x": "/v1/models"})
                for path in (*ENGINE_PATHS, "/v1/models", "/v1/models/llama")
            }
    return {path: response.status_code for path, response in responses.items()}


@pytest.mark.parametrize("layout", PROTECTED.values(), ids=PROTECTED)
async def test_every_path_requires_the_token_that_it_required_before(
    tmp_path: Path, layout: str
) -> None:
    text = configuration([listener(layout, filters=TOKEN + ROUTER)])
    before = await statuses(text, tmp_path / "before")
    after = await statuses(merged(text, endpoints=["127.0.0.1:1"]), tmp_path / "after")
    assert set(before.values()) >= {403}
    # Neither servers nor the sidecar run, so 503 means that the request passed the filter.
    assert after == before
