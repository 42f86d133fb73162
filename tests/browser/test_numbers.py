"""Every number of the page is that of `/debug/state` and `/metrics`."""

from __future__ import annotations

import pytest

from tests.browser.conftest import Launch, OpenPage
from tests.browser.readings import NONE, check, is_rate, number, percent, read, with_streams

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_every_number_of_the_models_is_that_of_state_and_metrics(
    launch: Launch, open_page: OpenPage
) -> None:
    scene = await with_streams(launch)
    page = await open_page(scene.sidecar.admin)
    await page.next_poll()
    state, metrics = await read(scene)
    rows = await page.table("models")
    assert [row["Model"] for row in rows] == list(state["models"])
    for row in rows:
        name = row["Model"]
        endpoints = state["models"][name]["endpoints"]
        prompt = metrics.sum("extproc_prompt_tokens_total", model=name)
        cached = metrics.sum("extproc_predicted_cached_tokens_total", model=name)
        routed = metrics.sum("extproc_requests_total", model=name, outcome="routed")
        inflight = metrics.sum("extproc_inflight_requests", model=name)
        assert inflight == sum(one["inflight"] for one in endpoints)
        states = {
            kind.capitalize(): f"{metrics.sum('extproc_endpoints', model=name, state=kind):g}"
            for kind in ("ready", "ejected", "draining")
        }
        check(
            row,
            {
                "Model": name,
                "Strategy": state["models"][name]["strategy"],
                "Requests/s": is_rate,
                "Routed": f"{routed:g}",
                "In flight": f"{inflight:g}",
                **states,
                "Predicted hits": percent(cached / prompt) if prompt else NONE,
                "Endpoints from": "a list",
                "Discovery age": NONE,
            },
        )


async def test_every_number_of_the_endpoints_is_that_of_state(
    launch: Launch, open_page: OpenPage
) -> None:
    scene = await with_streams(launch)
    page = await open_page(scene.sidecar.admin)
    state, _ = await read(scene)
    llama = state["models"]["llama"]["endpoints"]
    inflight = sum(one["inflight"] for one in llama)
    bound = (inflight + 1) * 125 // (len(llama) * 100)
    assert [row["Endpoint"] for row in await page.table("endpoints")] == [
        one["address"] for one in llama
    ]
    for row, one in zip(await page.table("endpoints"), llama, strict=True):
        check(
            row,
            {
                "Endpoint": one["address"],
                "State": "ready",
                "In flight": str(one["inflight"]),
                "Bound": str(bound),
                "Adapters": "sql",
            },
        )
    await page.choose("cache")
    state, _ = await read(scene)
    for row, one in zip(
        await page.table("endpoints"), state["models"]["cache"]["endpoints"], strict=True
    ):
        signals = one["signals"]
        check(
            row,
            {
                "Endpoint": one["address"],
                "State": "ready",
                "In flight": str(one["inflight"]),
                "Running": f"{signals['running']:g}",
                "Waiting": f"{signals['waiting']:g}",
                "KV cache": percent(signals["kv_usage"]),
                "Age": lambda text: text.endswith("s"),
                "TTFT": NONE,
                "Predicted hits": lambda text: text == NONE or 0 <= number(text) <= 100,
                "Actual hits": NONE,
            },
        )


async def test_every_tile_is_the_number_of_the_metrics(launch: Launch, open_page: OpenPage) -> None:
    scene = await with_streams(launch)
    page = await open_page(scene.sidecar.admin)
    await page.until(
        "document.querySelector('[data-term=\"Requests per second\"] dd').textContent === '0.0'"
    )
    _, metrics = await read(scene)
    routed = metrics.sum("extproc_requests_total", outcome="routed")
    assert await page.facts("tiles") == {
        "Requests per second": "0.0",
        "Routed": f"{routed:g}",
        "Not routed": f"{metrics.sum('extproc_requests_total') - routed:g}",
        "In flight": f"{metrics.sum('extproc_inflight_requests'):g}",
        "Decision time, mean": NONE,
        "Decision time, 99 %": NONE,
    }
    await scene.streams.open("llama", "one more")
    await page.next_poll()
    tiles = await page.facts("tiles")
    assert tiles["Routed"] == "201"
    assert number(tiles["Requests per second"]) > 0
    assert tiles["Decision time, mean"].endswith(("us", "ms"))
    assert tiles["Decision time, 99 %"].startswith("≤")
