"""The status page in a real browser."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any, Literal
from urllib.parse import urlsplit

import pytest
from axe_playwright_python.base import AXE_FILE_PATH
from prometheus_client.parser import text_string_to_metric_families

from extproc.lab.stack.processes import until
from tests.browser.conftest import Launch, OpenPage, Scene, settled
from tests.browser.status_page import Row, StatusPage
from tests.edge.envoy import chat_request
from tests.extent import PATIENCE

pytestmark = pytest.mark.asyncio(loop_scope="module")

STREAMS = 200
NONE = "-"
Json = dict[str, Any]


class Metrics:
    """The samples of `/metrics`."""

    def __init__(self, text: str) -> None:
        self._samples = [s for f in text_string_to_metric_families(text) for s in f.samples]

    def sum(self, name: str, **labels: str) -> float:
        return sum(
            one.value
            for one in self._samples
            if one.name == name and labels.items() <= one.labels.items()
        )


async def read(scene: Scene) -> tuple[Json, Metrics]:
    """Return `/debug/state` and `/metrics`."""
    _, state = await scene.sidecar.get("/debug/state")
    _, metrics = await scene.sidecar.get("/metrics")
    return json.loads(state), Metrics(metrics)


async def with_streams(launch: Launch) -> Scene:
    """Start a sidecar with 200 open streams: of ten prefixes, and some with one prefix."""
    scene = await launch()
    for number in range(STREAMS):
        model = "cache" if number % 4 == 0 else "llama"
        await scene.streams.open(model, f"prompt {number % 10} " * 200)
    await settled(scene, STREAMS)
    return scene


def number(text: str) -> float:
    """Return a number as the page writes it."""
    return float(text.replace(",", "").removesuffix(" %").removesuffix(" s"))


def check(row: Row, expected: dict[str, str | Callable[[str], bool]]) -> None:
    """Compare all cells of a row. A column without an expectation is an error."""
    assert row.keys() == expected.keys()
    for title, wanted in expected.items():
        assert wanted(row[title]) if callable(wanted) else row[title] == wanted, (title, row)


def percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def is_rate(text: str) -> bool:
    return text == NONE or number(text) >= 0


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
    await page.page.select_option("#decisions-reason", "bound")
    await page.next_poll()
    assert await page.table("decisions") == [row for row in rows if row["Reason"] == "bound"]


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


async def test_has_no_accessibility_violations(launch: Launch, open_page: OpenPage) -> None:
    scene = await launch()
    for place in range(20):
        await scene.streams.open("llama", f"the same prefix {place % 2}" * 20)
    await scene.streams.open("none", "x")
    page = await open_page(scene.sidecar.admin)
    await page.explain(json.dumps(chat_request("llama", "x")))
    # The page's policy forbids inline scripts, but not those of the browser's driver.
    await page.page.evaluate(AXE_FILE_PATH.read_text())
    looks: tuple[tuple[Literal["light", "dark"], int], ...] = (("light", 1280), ("dark", 360))
    for scheme, width in looks:
        await page.page.emulate_media(color_scheme=scheme)
        await page.page.set_viewport_size({"width": width, "height": 800})
        found = await page.page.evaluate("axe.run()")
        assert len(found["passes"]) > 20
        violations = {
            one["id"]: [node["html"] for node in one["nodes"]] for one in found["violations"]
        }
        assert violations == {}, (scheme, width)
        overflows = "document.documentElement.scrollWidth > document.documentElement.clientWidth"
        assert not await page.page.evaluate(overflows), "only tables scroll sideways"


async def test_works_with_the_keyboard(launch: Launch, open_page: OpenPage) -> None:
    scene = await launch()
    await scene.streams.open("llama", "x")
    page = await open_page(scene.sidecar.admin)
    await page.page.keyboard.press("Tab")
    assert await page.page.evaluate("document.activeElement.className") == "skip"
    await page.page.locator("#models-rows button:text-is('cache')").focus()
    await page.page.keyboard.press("Enter")
    await page.next_poll()
    assert await page.text(".chosen") == "cache"
    assert urlsplit(page.page.url).query == "model=cache"
    focused = "document.activeElement.textContent"
    assert await page.page.evaluate(focused) == "cache", "polls keep the focus"


async def test_asks_only_its_own_sidecar_and_only_while_visible(
    launch: Launch, open_page: OpenPage
) -> None:
    scene = await launch()
    page = await open_page(scene.sidecar.admin)
    await page.explain("{}")
    assert all(url.startswith(scene.sidecar.admin) for url in page.requested)
    hide = (
        "state => { Object.defineProperty(document, 'hidden', {value: state, configurable: true});"
    )
    await page.page.evaluate(hide + "document.dispatchEvent(new Event('visibilitychange')) }", True)
    await asyncio.sleep(0.5)  # a request that was on its way
    asked = len(page.requested)
    await asyncio.sleep(2.5)
    assert len(page.requested) == asked
    await page.page.evaluate(
        hide + "document.dispatchEvent(new Event('visibilitychange')) }", False
    )
    await page.next_poll()


async def test_shows_a_refused_document_and_then_the_good_one(
    launch: Launch, open_page: OpenPage
) -> None:
    scene = await launch()
    page = await open_page(scene.sidecar.admin)
    good = scene.sidecar.models.read_text()
    scene.sidecar.models.write_text("models: [{nam: llama}]")

    async def refused() -> bool:
        return "Last error" in await page.facts("configuration")

    await until(refused, PATIENCE, "the error on the page")
    assert "models[0]" in (await page.facts("configuration"))["Last error"]
    assert await page.text("#health") == "Ready; the last models document was refused"
    scene.sidecar.models.write_text(good)

    async def applied() -> bool:
        return "Last error" not in await page.facts("configuration")

    await until(applied, PATIENCE, "the valid document")


async def test_says_when_the_sidecar_is_away(launch: Launch, open_page: OpenPage) -> None:
    scene = await launch()
    page = await open_page(scene.sidecar.admin)
    await scene.sidecar.kill()
    await page.page.wait_for_selector("#health.bad")
    assert (await page.text("#health")).startswith("No connection to the sidecar since ")
    scene.sidecar.spawn()
    await page.page.wait_for_selector("#health.good")
    assert all("ERR_CONNECTION" in error for error in page.errors), "the browser's own lines"
    page.errors.clear()


async def test_flag_turns_the_page_off(launch: Launch) -> None:
    scene = await launch(["--no-status-page"])
    for path in ("/", "/status/state", "/status/main.js"):
        assert (await scene.sidecar.get(path))[0] == 404
    assert (await scene.sidecar.get("/debug/state"))[0] == 200


STATES: list[Json] = [
    {"state": "ready", "slow_start": 0.25, "slowness": 1.5},
    {"state": "ejected", "ejection": {"left": 3.2, "on_trial": False}},
    {"state": "ejected", "ejection": {"left": 9.0, "on_trial": True}},
]

STATE: Json = {
    "version": "1",
    "not_ready": None,
    "inflight": 3,
    "inflight_fleet": 9,
    "requests": {},
    "durations": {"bounds": [0.1], "counts": [0, 0], "sum": 0},
    "configuration": {
        "source": "a.yaml",
        "age_seconds": 0,
        "last_reload_successful": True,
        "last_error": "",
    },
    "shared_state": {
        "connected": True,
        "id": "f00",
        "lag_seconds": 0.0125,
        "peers": [{"id": "ba5", "inflight": 6, "age_seconds": 0.5}],
    },
    "models": [
        {
            "name": "llama",
            "strategy": "LeastLoad",
            "adapters": [],
            "prompts": None,
            "states": {"ready": 1, "ejected": 2},
            "inflight": 3,
            "inflight_fleet": 9,
            "queue": {"requests": 17, "classes": {"batch": 12, "interactive": 5}},
            "routed": 1,
            "source": "inference/vllm",
            "discovery_age_seconds": 2.5,
        }
    ],
    "chosen": {
        "name": "llama",
        "bound": None,
        "ring_version": 0,
        "endpoints": [
            {
                "address": f"10.0.0.{place}:80",
                "name": f"ns/pod-{place}",
                "adapters": [],
                "inflight": 1,
                "inflight_fleet": 3,
                "limit": 8,
                "signals": None,
                **extra,
            }
            for place, extra in enumerate(STATES)
        ],
    },
    "decisions": {"total": 0, "new": []},
}


async def test_shows_queues_limits_peers_ejections_and_slow_starts(
    launch: Launch, open_page: OpenPage
) -> None:
    scene = await launch()

    async def answer(page: Any) -> None:
        await page.route(
            "**/status/state*", lambda route: route.fulfill(body=json.dumps(STATE), status=200)
        )

    page: StatusPage = await open_page(scene.sidecar.admin, before=answer)
    (model,) = await page.table("models")
    assert {
        "Waiting": "17",
        "Waiting by class": "batch 12, interactive 5",
        "In flight": "3",
        "All sidecars": "9",
        "Ejected": "2",
        "Endpoints from": "inference/vllm",
        "Discovery age": "2.5 s",
    }.items() <= model.items()
    rows = await page.table("endpoints")
    assert rows[0]["Endpoint"] == "ns/pod-0 (10.0.0.0:80)"
    assert {row["Limit"] for row in rows} == {"8"}
    assert {row["All sidecars"] for row in rows} == {"3"}
    assert [row["State"] for row in rows] == ["ready", "ejected, 3.2 s left", "ejected, on trial"]
    assert rows[0]["Weight"] == "slow start 25.0 %, 1.5 times the usual time"
    assert (await page.table("peers")) == [
        {"Peer": "ba5", "In flight": "6", "Last report": "500 ms"}
    ]
    assert (await page.facts("shared-state"))["Lag"] == "12.5 ms"
    assert (await page.facts("tiles"))["In flight, all sidecars"] == "9"
