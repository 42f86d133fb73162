"""The decisions, the way of a request on the ring, and explanations, on the page."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from tests.browser.conftest import Launch, OpenPage
from tests.browser.readings import STREAMS, read, with_streams
from tests.edge.envoy import chat_request

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_every_decision_is_shown_with_its_reason_and_no_prompt(
    launch: Launch, open_page: OpenPage
) -> None:
    scene = await launch()
    sent = [await scene.streams.open("llama", f"secret {place % 3} " * 50) for place in range(12)]
    await scene.streams.open("unheard-of", "secret")
    page = await open_page(scene.sidecar.admin)
    rows = await page.table("decisions")
    assert [row["Number"] for row in rows] == [str(place) for place in range(13, 0, -1)]
    assert (rows[0]["Model"], rows[0]["Reason"]) == ("unknown", "model_not_found")
    for row, reply in zip(reversed(rows[1:]), sent, strict=True):
        told = reply.metadata["extproc"]
        assert {
            "Model": told["model"],
            "Endpoint": told["endpoint"],
            "Reason": told["reason"],
            "Hash": told["prefix_hash"],
            "Hops": f"{told['hops']:g}",
            "In flight before": f"{told['inflight']:g}",
            "Candidates": f"{told['candidates']:g}",
        }.items() <= row.items()
    whole = await page.page.content()
    assert "secret" not in whole
    assert "unheard-of" not in whole


async def test_filters_decisions(launch: Launch, open_page: OpenPage) -> None:
    scene = await with_streams(launch)
    page = await open_page(scene.sidecar.admin)
    rows = await page.table("decisions")
    assert len(rows) == STREAMS
    assert await page.text("#decisions-shown") == "200 of 200"
    for text in ("cache", rows[0]["Hash"], rows[0]["Endpoint"]):
        await page.page.fill("#decisions-filter", text)
        await page.next_poll()
        expected = [row for row in rows if text in row.values()]
        assert 0 < len(expected) < STREAMS
        assert await page.table("decisions") == expected
    await page.page.fill("#decisions-filter", "")
    # Whether the bound moves a request depends on the ports of the endpoints.
    reasons = Counter(row["Reason"] for row in rows)
    rarest = min(reasons, key=reasons.__getitem__)
    assert 0 < reasons[rarest] < STREAMS
    await page.page.select_option("#decisions-reason", rarest)
    await page.next_poll()
    assert await page.table("decisions") == [row for row in rows if row["Reason"] == rarest]


async def test_pause_keeps_the_decisions(launch: Launch, open_page: OpenPage) -> None:
    scene = await launch()
    await scene.streams.open("llama", "first")
    page = await open_page(scene.sidecar.admin)
    await page.page.check("#decisions-pause")
    await scene.streams.open("llama", "second")
    await page.next_poll()
    assert len(await page.table("decisions")) == 1
    await page.page.uncheck("#decisions-pause")
    assert len(await page.table("decisions")) == 2


async def test_ring_shows_where_a_spilled_request_went(launch: Launch, open_page: OpenPage) -> None:
    scene = await launch()
    for _ in range(12):
        await scene.streams.open("llama", "the same prefix " * 20)
    page = await open_page(scene.sidecar.admin)
    rows = await page.table("decisions")
    spilled = next(row for row in rows if row["Hops"] == "1")
    at_home = rows[-1]
    await page.page.click(f"tr[data-key='{spilled['Number']}'] button")
    facts = await page.facts("ring-facts")
    assert facts == {
        "Request": f"number {spilled['Number']}",
        "Hash of its prefix": spilled["Hash"],
        "Home endpoint": at_home["Endpoint"],
        "Passed over, above the bound": at_home["Endpoint"],
        "Went to": spilled["Endpoint"],
        "Reason": "bound",
    }
    assert await page.page.locator("#ring-picture .arcs path").count() == 4
    assert await page.page.locator("#ring-picture .way .passed").count() == 1
    assert await page.page.locator("#ring-strip .passed").count() == 1
    assert await page.page.locator("#ring-strip .taken").count() == 1
    assert "1,024 virtual nodes of 4 endpoints" in await page.text("#ring-about")
    await page.page.click("#ring-follow")
    assert (await page.facts("ring-facts"))["Request"] == "the last one"


async def test_explains_what_the_next_request_gets_and_changes_nothing(
    launch: Launch, open_page: OpenPage
) -> None:
    scene = await with_streams(launch)
    page = await open_page(scene.sidecar.admin)
    before = await scene.sidecar.state()
    _, metrics = await read(scene)
    for prompt in ("prompt 3 " * 200, "another prompt"):
        steps = await page.explain(json.dumps(chat_request("llama", prompt)))
        after, now = await scene.sidecar.state(), (await read(scene))[1]
        assert after["llama"] == before["llama"]
        counted = "extproc_requests_total"
        assert now.sum(counted) == metrics.sum(counted)
        shown = (await page.facts("ring-facts"))["Hash of its prefix"]
        reply = await scene.streams.open("llama", prompt)
        told = reply.metadata["extproc"]
        assert steps[-1] == f"Endpoint {told['endpoint']} ({told['reason']})"
        assert f"Hash {told['prefix_hash']}" in steps
        assert shown == told["prefix_hash"]
        before, metrics = await scene.sidecar.state(), (await read(scene))[1]


async def test_explains_refusals(launch: Launch, open_page: OpenPage) -> None:
    scene = await launch()
    page = await open_page(scene.sidecar.admin)
    for body, code in (("{", "400 invalid_request"), ('{"model": "gpt"}', "404 model_not_found")):
        assert f"Refused {code}" in (await page.explain(body))[-1]
    body = json.dumps(chat_request("sql", "x"))
    steps = await page.explain(body, "Session-Id: 7", "/team/v1/chat/completions")
    assert "Adapter sql" in steps
    assert "Refused 404 unknown_path" in (await page.explain(body, path="/elsewhere"))[-1]
