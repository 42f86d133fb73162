"""Stored responses, which the sidecar finds by the ids that it chose."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from extproc.lab.stack.processes import free_port
from tests.e2e.scene import Json, Launch, Options, Scene, show_bodies
from tests.e2e.test_gateways import as_envoy_ai_gateway

RESPONSES = "/v1/responses"


class Store:
    """A server that stores responses like vLLM, with the ids from the requests."""

    def __init__(self) -> None:
        self.kept: dict[str, Json] = {}
        self.bodies: list[Json] = []

    async def create(self, request: web.Request) -> web.Response:
        body = json.loads(await request.read())
        self.bodies.append(body)
        previous = body.get("previous_response_id")
        if previous is not None and previous not in self.kept:
            return web.json_response({"error": f"no {previous}"}, status=404)
        name = body.get("request_id") or f"resp_own_{len(self.kept)}"
        self.kept[name] = {"id": name, "status": "completed"}
        return web.json_response(self.kept[name])

    async def look_up(self, request: web.Request) -> web.Response:
        found = self.kept.get(request.match_info["id"])
        if found is None:
            return web.json_response({"error": "not found"}, status=404)
        return web.json_response(found)


@asynccontextmanager
async def store() -> AsyncIterator[tuple[Store, str]]:
    """Run a store and yield it with its address."""
    kept = Store()
    app = web.Application(client_max_size=2**26)
    app.router.add_post(f"/{{prefix:.*}}{RESPONSES}", kept.create)
    app.router.add_post(RESPONSES, kept.create)
    app.router.add_post(f"{RESPONSES}/{{id}}/cancel", kept.look_up)
    app.router.add_get(f"{RESPONSES}/{{id}}", kept.look_up)
    app.router.add_delete(f"{RESPONSES}/{{id}}", kept.look_up)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        yield kept, f"127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def partial(config: Json) -> None:
    show_bodies(config, "BUFFERED_PARTIAL")


def unchanged(config: Json) -> None:
    del config


def stored(addresses: list[str], **others: object) -> Options:
    model = {"name": "stored", "aliases": ["s"], "endpoints": addresses}
    return Options(**{"replicas": 1, "more_models": [model], **others})  # type: ignore[arg-type]


def asking(content: str, **fields: object) -> Json:
    return {"input": content, "model": "s", **fields}


@pytest.mark.parametrize(
    ("config", "change"),
    [
        pytest.param("envoy.yaml", unchanged, id="ahead"),
        pytest.param("envoy.yaml", partial, id="partial"),
        pytest.param("endpoint-picker.yaml", as_envoy_ai_gateway, id="buffered"),
    ],
)
async def test_a_response_is_found_and_continued_on_its_endpoint(
    launch: Launch, config: str, change: Callable[[Json], None]
) -> None:
    async with store() as (one, first), store() as (two, second), store() as (three, third):
        scene = await launch(stored([first, second, third], config=config, change_config=change))
        names = []
        for number in range(12):
            padding = "x" * (100_000 if number % 4 == 3 else 10)
            reply = await scene.send(asking(f"{number}{padding}"), path=RESPONSES)
            assert reply.status == 200
            names.append(reply.json()["id"])
        stores = [one, two, three]
        assert sum(bool(each.kept) for each in stores) > 1
        assert sum(len(each.kept) for each in stores) == 12
        for name in names:
            await assert_found(scene, name)
        await scene.agree_on_inflight(0)
        for body in (body for each in stores for body in each.bodies):
            assert set(body) <= {"input", "model", "request_id", "previous_response_id"}


async def assert_found(scene: Scene, name: str) -> None:
    for method, end in (("GET", ""), ("POST", "/cancel"), ("DELETE", "")):
        reply = await scene.send(b"", method=method, path=f"{RESPONSES}/{name}{end}")
        assert (reply.status, reply.json()["id"]) == (200, name)
    reply = await scene.send(asking("and then?", previous_response_id=name), path=RESPONSES)
    assert reply.status == 200


async def test_a_body_without_a_stored_response_is_unchanged(launch: Launch) -> None:
    async with store() as (kept, address):
        scene = await launch(stored([address]))
        for fields in ({"store": False}, {"request_id": "resp_mine"}):
            body = {"input": "hello", "model": "stored", **fields}
            assert (await scene.send(body, path=RESPONSES)).status == 200
            assert kept.bodies[-1] == body


async def test_a_response_is_found_on_the_endpoint_of_a_retry(
    launch: Launch, every_envoy: str
) -> None:
    dead = f"127.0.0.1:{free_port()}"
    async with store() as (kept, address):
        scene = await launch(stored([dead, address]))
        for number in range(8):
            reply = await scene.send(asking(str(number)), path=RESPONSES)
            assert reply.status == 200
            name = reply.json()["id"]
            assert (await scene.send(b"", method="GET", path=f"{RESPONSES}/{name}")).status == 200
        assert len(kept.kept) == 8
