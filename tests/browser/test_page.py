"""The page itself: accessible, careful with its sidecar, and honest about errors."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Sequence
from typing import Any, Literal
from urllib.parse import urlsplit

import pytest
from axe_playwright_python.base import AXE_FILE_PATH

from extproc.lab.stack.processes import until
from tests.browser.conftest import Launch, OpenPage, two_models
from tests.edge.envoy import chat_request
from tests.extent import PATIENCE

pytestmark = pytest.mark.asyncio(loop_scope="session")


def with_all_parts(addresses: Sequence[str]) -> dict[str, Any]:
    """Return a document with which the page has all its parts but the peers."""
    document = two_models(addresses)
    document["models"][1]["flowControl"] = {}
    return document


async def test_has_no_accessibility_violations(launch: Launch, open_page: OpenPage) -> None:
    scene = await launch(document=with_all_parts)
    for place in range(20):
        await scene.streams.open("llama", f"the same prefix {place % 2}" * 20)
    await scene.streams.open("none", "x")
    page = await open_page(scene.sidecar.admin)
    assert await page.page.locator("section:visible").count() == 8
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


async def test_says_when_the_sidecar_hangs(launch: Launch, open_page: OpenPage) -> None:
    scene = await launch()
    page = await open_page(scene.sidecar.admin)
    scene.sidecar.signal(signal.SIGSTOP)
    await page.page.wait_for_selector("#health.bad")
    assert (await page.text("#health")).startswith("No connection to the sidecar since ")
    scene.sidecar.signal(signal.SIGCONT)
    await page.page.wait_for_selector("#health.good")


HOSTILE = '<img src=x onerror="document.title = `attacked`">'


async def test_shows_hostile_names_as_text(launch: Launch, open_page: OpenPage) -> None:
    """Names come from the models document and from servers; clients choose the rest."""
    scene = await launch(
        document=lambda addresses: {
            "models": [
                {"name": HOSTILE, "endpoints": addresses[:2], "adapters": [f"{HOSTILE} adapter"]},
                {"name": "__proto__", "endpoints": addresses[:2]},
            ]
        }
    )
    await scene.streams.open(f"{HOSTILE} adapter", HOSTILE, x_request_id=HOSTILE.encode())
    await scene.streams.open("__proto__", HOSTILE)
    await scene.streams.open(f"{HOSTILE} unknown", HOSTILE)
    page = await open_page(scene.sidecar.admin)
    assert {row["Model"] for row in await page.table("models")} == {HOSTILE, "__proto__"}
    assert {row["Model"] for row in await page.table("decisions")} == {
        HOSTILE,
        "__proto__",
        "unknown",
    }
    for name in (HOSTILE, "unheard-of"):
        body = json.dumps(chat_request(name, HOSTILE))
        assert any(HOSTILE in step for step in await page.explain(body, f"{HOSTILE}: {HOSTILE}"))
    assert "unknown_path" in (await page.explain("{}", path=f"/{HOSTILE}"))[-1]
    scene.sidecar.models.write_text(json.dumps({"models": [{HOSTILE: HOSTILE}]}))
    await page.until("document.getElementById('configuration').textContent.includes('onerror')")
    assert await page.page.locator("img, script:not([src])").count() == 0
    assert await page.page.title() == "extproc status"


async def test_reports_its_own_defects(launch: Launch, open_page: OpenPage) -> None:
    """A state that the page cannot show is no lost connection."""
    scene = await launch()
    page = await open_page(scene.sidecar.admin)
    await page.page.route("**/status/state*", lambda route: route.fulfill(json={"models": 5}))

    async def reported() -> bool:
        return bool(page.errors)

    await until(reported, PATIENCE, "an error of the page")
    assert "No connection" not in await page.text("#health")
    await page.page.unroute("**/status/state*")
    await page.next_poll()
    page.errors.clear()
