"""The routes of the status page."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

import extproc.edge.status
from extproc.edge.admin import admin_app
from extproc.edge.status.page import LONGEST_BODY
from extproc.explain import explain_now
from tests.core.builders import model_spec
from tests.edge.envoy import chat_request
from tests.edge.streams import Sidecar

FILES = Path(extproc.edge.status.__file__).parent
JSON = {"content-type": "application/json"}
LARGEST = 150_000

Client = TestClient[web.Request, web.Application]


@pytest.fixture
def sidecar() -> Sidecar:
    return Sidecar(model_spec(), model_spec("other", endpoints=["10.0.0.3:8000"]))


@pytest.fixture
async def client(sidecar: Sidecar) -> AsyncIterator[Client]:
    def explained(body: bytes, path: str, headers: Mapping[str, str]) -> Mapping[str, object]:
        return explain_now(sidecar.router, body, path, headers).as_dict()

    router = sidecar.router
    app = admin_app(
        *(router.fleet, lambda: router.catalog, sidecar.telemetry, lambda: None), explain=explained
    )
    async with TestClient(TestServer(app)) as client:
        yield client


def files() -> list[Path]:
    return [path for path in FILES.iterdir() if path.suffix in (".html", ".css", ".js", ".svg")]


async def test_serves_the_page_and_its_files(client: Client) -> None:
    page = await client.get("/")
    assert (page.status, page.content_type) == (200, "text/html")
    for path in files():
        found = await client.get(f"/status/{path.name}")
        assert (found.status, await found.read()) == (200, path.read_bytes())
    named = re.findall(r'(?:href|src)="(status/[^"]+)"', await page.text())
    for name in named:
        assert (await client.get(f"/{name}")).status == 200
    assert (await client.get("/status/page.py")).status == 404
    assert (await client.get("/status/..%2fadmin.py")).status == 404


def test_page_is_small_and_loads_nothing_from_other_hosts() -> None:
    assert sum(path.stat().st_size for path in files()) < LARGEST
    for path in files():
        text = path.read_text().replace("http://www.w3.org/2000/svg", "")
        assert "://" not in text, path.name
        assert not re.search(r"<style|style=|\son\w+=|innerHTML|\beval\b", text), path.name


async def test_policy_forbids_other_hosts_and_inline_scripts(client: Client) -> None:
    for path in ("/", "/status/main.js", "/status/state"):
        headers = (await client.get(path)).headers
        assert headers["content-security-policy"].startswith("default-src 'self';")
        assert headers["x-content-type-options"] == "nosniff"
        assert "access-control-allow-origin" not in headers


async def test_state_has_the_endpoints_of_the_wanted_model(client: Client) -> None:
    first = await (await client.get("/status/state")).json()
    assert [model["name"] for model in first["models"]] == ["llama", "other"]
    assert first["chosen"]["name"] == "llama"
    other = await (await client.get("/status/state?model=other&after=nonsense")).json()
    assert [one["address"] for one in other["chosen"]["endpoints"]] == ["10.0.0.3:8000"]
    unknown = await (await client.get("/status/state?model=gone")).json()
    assert unknown["chosen"]["name"] == "llama"


async def test_ring_of_an_unknown_model_is_not_found(client: Client) -> None:
    assert (await (await client.get("/status/ring?model=llama")).json())["nodes"] == 512
    assert (await client.get("/status/ring?model=gone")).status == 404


async def test_explains_a_request(client: Client) -> None:
    body = json.dumps(chat_request("llama", "hello"))
    found = await client.post("/status/explain", json={"body": body})
    explanation = await found.json()
    assert (found.status, explanation["model"], explanation["prefix"]) == (200, "llama", "hello")
    refused = await (await client.post("/status/explain", json={"body": "{"})).json()
    assert refused["error"]["code"] == "invalid_request"


async def test_explains_only_what_the_own_page_can_send(client: Client) -> None:
    body = json.dumps({"body": "{}"})
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data"):
        found = await client.post("/status/explain", data=body, headers={"content-type": kind})
        assert found.status == 415
    assert (await client.get("/status/explain")).status == 404


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b'{"body": 5}', b'{"body": "", "more": 1}', b'{"body": "\\ud800"}']
)
async def test_unreadable_question_is_refused(client: Client, body: bytes) -> None:
    found = await client.post("/status/explain", data=body, headers=JSON)
    assert found.status == 400
    assert (await found.json())["problem"]


async def test_long_body_is_refused(client: Client) -> None:
    body = json.dumps({"body": "x" * LONGEST_BODY})
    assert (await client.post("/status/explain", data=body, headers=JSON)).status == 413


async def test_headers_cannot_replace_the_method(client: Client) -> None:
    asked = {"body": "", "path": "/v1/models", "headers": {":method": "GET", "X-Model": "llama"}}
    found = await (await client.post("/status/explain", json=asked)).json()
    assert found["error"]["code"] == "unknown_path"
