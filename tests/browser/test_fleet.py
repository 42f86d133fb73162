"""Queues, limits, peers, ejections and slow starts on the page."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from extproc.lab.stack.processes import until
from extproc.lab.stack.valkey import Valkey
from tests.browser.conftest import Launch, OpenPage, Scene, settled, two_models
from tests.browser.readings import NONE, check, number, read
from tests.extent import PATIENCE

pytestmark = pytest.mark.asyncio(loop_scope="session")

MODEL = "llama"
CLASSES = [{"name": "batch", "priority": -1, "maxQueued": 2}, {"name": "chat", "priority": 5}]


def with_queue(addresses: Sequence[str]) -> dict[str, Any]:
    """Return a document with room for one request on each of two endpoints."""
    flow = {"maxInflight": 1, "classes": CLASSES}
    return {"models": [{"name": MODEL, "endpoints": list(addresses[:2]), "flowControl": flow}]}


def is_time(text: str) -> bool:
    return text.endswith("s") and text != "0 s"


async def send(scene: Scene, prompt: str, objective: bytes, tenant: bytes) -> None:
    headers = {
        "x_gateway_inference_objective": objective,
        "x_gateway_inference_fairness_id": tenant,
    }
    await scene.streams.send(MODEL, prompt, **headers)


async def test_shows_queues_with_their_classes_limits_and_refusals(
    launch: Launch, open_page: OpenPage
) -> None:
    scene = await launch(document=with_queue)
    page = await open_page(scene.sidecar.admin)
    assert await page.table("queues") == [
        {"Model": MODEL, "Class": NONE, "Priority": NONE, "Waiting": "0"}
        | {"Tenants": NONE, "Longest wait": NONE}
    ]
    held = [await scene.streams.send(MODEL, f"long {place}") for place in range(2)]
    for call in held:
        await call.read()
    for place, (objective, tenant) in enumerate(
        [(b"chat", b"a"), (b"batch", b"a"), (b"batch", b"b"), (b"batch", b"b"), (b"chat", b"a")]
    ):
        await send(scene, f"{place}", objective, tenant)

    async def queued() -> bool:
        return (await read(scene))[1].sum("extproc_queue_requests") == 4

    await until(queued, PATIENCE, "the requests in the queue")
    await page.next_poll()
    state, metrics = await read(scene)
    rows = await page.table("queues")
    expected = [("chat", "5", "2", "1"), ("default", "0", "0", "0"), ("batch", "-1", "2", "2")]
    for row, (name, priority, waiting, tenants) in zip(rows, expected, strict=True):
        check(
            row,
            {
                "Model": MODEL,
                "Class": name,
                "Priority": priority,
                "Waiting": waiting,
                "Tenants": tenants,
                "Longest wait": "0 s" if waiting == "0" else is_time,
            },
        )
    (model,) = await page.table("models")
    saturation = metrics.sum("extproc_saturation", model=MODEL)
    assert saturation == state["models"][MODEL]["queue"]["saturation"] == 3
    refused = metrics.sum("extproc_requests_total", model=MODEL, outcome="queue_full")
    assert {
        "Waiting": "4",
        "Saturation": f"{saturation:.2f}",
        "Refused": f"{refused:g} queue_full",
    }.items() <= model.items()
    assert (await page.facts("tiles"))["Waiting"] == "4"
    limits = [row["Limit"] for row in await page.table("endpoints")]
    assert limits == [f"{metrics.sum('extproc_endpoint_limit') / 2:g}"] * 2 == ["1", "1"]
    held[0].cancel()
    await page.until("document.querySelector('#tiles [data-term=Waiting] dd').textContent === '3'")
    (first, *_) = await page.table("decisions")
    assert first["Waited"] != NONE


async def test_hides_queues_without_flow_control(launch: Launch, open_page: OpenPage) -> None:
    page = await open_page((await launch()).sidecar.admin)
    for selector in ("#queues", "#queues-link"):
        assert await page.page.locator(selector).is_hidden()


async def test_shows_the_requests_of_all_sidecars_that_share_their_state(
    launch: Launch, open_page: OpenPage, tmp_path: Path
) -> None:
    async with AsyncExitStack() as cleanup:
        server = Valkey(tmp_path)
        cleanup.push_async_callback(server.kill)
        await server.start()
        one = await launch(["--shared-state", server.url])
        document = {"models": [{"name": MODEL, "endpoints": list(one.addresses[:4])}]}
        two = await launch(["--shared-state", server.url], document=lambda _: document)
        for _ in range(2):
            await one.streams.open(MODEL, "mine")
        for _ in range(3):
            await two.streams.open(MODEL, "theirs")
        page = await open_page(one.sidecar.admin)
        await page.until(
            "document.querySelector('[data-term=\"In flight, all sidecars\"] dd')"
            "?.textContent === '5'"
        )
        state, _ = await read(one)
        endpoints = state["models"][MODEL]["endpoints"]
        shown = await page.table("endpoints")
        for title, key in (("In flight", "inflight"), ("All sidecars", "inflight_fleet")):
            assert [row[title] for row in shown] == [f"{each[key]}" for each in endpoints]
        shared = state["shared_state"]
        facts = await page.facts("shared-state")
        assert (facts["Connected"], facts["This sidecar"], facts["Peers"]) == (
            "yes",
            shared["id"],
            "1",
        )
        (peer,) = await page.table("peers")
        assert (peer["Peer"], peer["In flight"]) == (shared["peers"][0]["id"], "3")
        await server.kill()
        await page.until("document.querySelector('#shared-state dd').textContent === 'no'")


async def test_shows_ejected_draining_and_new_endpoints(
    launch: Launch, open_page: OpenPage
) -> None:
    scene = await launch()
    page = await open_page(f"{scene.sidecar.admin}/?model=cache")
    failed = set()
    for _ in range(5):
        failed.add(await scene.streams.fail("cache", "x"))
        await settled(scene, 0)  # while one is in flight, the other endpoint is idler
    (address,) = failed
    await page.next_poll()
    rows = {row["Endpoint"]: row for row in await page.table("endpoints")}
    assert rows[address]["State"].startswith("ejected, ")
    assert 0 < number(rows[address]["State"].removeprefix("ejected, ").removesuffix(" left")) <= 5
    models = {row["Model"]: row for row in await page.table("models")}
    assert models["cache"]["Ejected"] == "1"
    reply = await scene.streams.open("cache", "y")
    left = str(reply.metadata["extproc"]["endpoint"])
    document = two_models(scene.addresses)
    document["models"][1]["endpoints"] = [address, scene.addresses[0]]
    scene.sidecar.write_models(document)
    await page.until(
        f"document.querySelector('[data-key=\"{left}\"]')?.dataset.state === 'draining'"
    )
    rows = {row["Endpoint"]: row for row in await page.table("endpoints")}
    assert rows[left]["In flight"] == "1"
    assert rows[scene.addresses[0]]["Weight"].startswith("slow start ")


async def test_shows_a_model_without_endpoints(launch: Launch, open_page: OpenPage) -> None:
    scene = await launch(document=lambda _: {"models": [{"name": MODEL, "endpoints": []}]})
    page = await open_page(scene.sidecar.admin)
    await scene.streams.open(MODEL, "x")
    await page.next_poll()
    (model,) = await page.table("models")
    assert {"Ready": "0", "Refused": "1 no_endpoints"}.items() <= model.items()
    assert await page.table("endpoints") == []
    assert "0 virtual nodes of 0 endpoints" in await page.text("#ring-about")
    assert (await page.explain('{"model": "llama"}'))[-1].startswith("Refused 503 no_endpoints")
