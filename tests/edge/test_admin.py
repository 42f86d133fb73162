from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from extproc.edge.admin import admin_app
from tests.core.builders import model_spec
from tests.edge.streams import Sidecar

Client = TestClient[web.Request, web.Application]


class Readiness:
    why_not: str | None = None


@pytest.fixture
def readiness() -> Readiness:
    return Readiness()


@pytest.fixture
def sidecar() -> Sidecar:
    return Sidecar(model_spec(adapters=["sql"]))


def app_of(sidecar: Sidecar, readiness: Readiness) -> web.Application:
    return admin_app(
        sidecar.router.fleet,
        lambda: sidecar.router.catalog,
        sidecar.telemetry,
        lambda: readiness.why_not,
    )


@pytest.fixture
async def client(sidecar: Sidecar, readiness: Readiness) -> AsyncIterator[Client]:
    async with TestClient(TestServer(app_of(sidecar, readiness))) as client:
        yield client


async def test_metrics_are_in_prometheus_text_format(client: Client) -> None:
    response = await client.get("/metrics")
    assert response.status == 200
    assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert "extproc_endpoints{" in await response.text()


async def test_healthz_succeeds_even_when_not_ready(client: Client, readiness: Readiness) -> None:
    readiness.why_not = "draining"
    response = await client.get("/healthz")
    assert (response.status, await response.text()) == (200, "ok\n")


async def test_readyz_gives_the_reason_when_not_ready(client: Client, readiness: Readiness) -> None:
    response = await client.get("/readyz")
    assert (response.status, await response.text()) == (200, "ok\n")
    readiness.why_not = "draining"
    response = await client.get("/readyz")
    assert (response.status, await response.text()) == (503, "draining\n")


async def test_debug_state_has_the_documented_shape(client: Client, sidecar: Sidecar) -> None:
    serving = sidecar.router
    decision = serving.decide(serving.resolve("llama", {"prompt": "x"}, {}))
    state = await (await client.get("/debug/state")).json()
    assert state.pop("configuration").keys() == {"source", "age_seconds", "last_reload_successful"}
    assert set(state) == {"models"}
    llama = state["models"]["llama"]
    assert (llama["strategy"], llama["adapters"]) == ("PrefixHash", ["sql"])
    shown = {endpoint["address"]: endpoint for endpoint in llama["endpoints"]}
    assert shown[decision.address] == {
        "address": decision.address,
        "name": decision.address,
        "inflight": 1,
        "state": "ready",
        "adapters": ["sql"],
        "signals": None,
    }


async def test_other_paths_are_not_found(client: Client) -> None:
    assert (await client.get("/")).status == 404, "there is no status page"
    assert (await client.post("/metrics")).status == 405
