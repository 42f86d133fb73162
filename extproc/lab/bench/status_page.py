"""The cost of the status page with 1,000 endpoints: CPU time of the sidecar, and frames a second.

python -m extproc.lab.bench.status_page
"""

from __future__ import annotations

import asyncio
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path
from random import Random
from time import monotonic, process_time
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from rich.console import Console

from extproc.adapters.observability.state import model_states
from extproc.adapters.observability.status import StatusReport
from extproc.adapters.observability.telemetry import Telemetry
from extproc.core.fleet.fleet import Fleet
from extproc.core.fleet.report import Load, Report
from extproc.core.routing.catalog import Catalog, revise
from extproc.core.routing.router import Router
from extproc.core.schema import ModelsSpec
from extproc.core.strategies import build
from extproc.lab.bench.grid import Grid
from extproc.lab.pages.browser import browser, browser_binary
from extproc.lab.stack.sidecar import FileSidecar

if TYPE_CHECKING:
    from playwright.async_api import Page

ENDPOINTS = 1000
MODELS = (50, 1)
STREAMS = 2000
"""Requests in flight for the time of a poll."""

_REPORT = Report(
    Load(1, 0.5), 3.0, None, frozenset(), frozenset(), 16, 2048, 9e5, 4e5, 900, 890, 70
)
_POLLS = 20
_FRAMES = """seconds => new Promise(done => {
    const gaps = [];
    let last = performance.now();
    const end = last + 1000 * seconds;
    const frame = now => {
        gaps.push(now - last);
        last = now;
        if (now < end) requestAnimationFrame(frame);
        else done([gaps.length / seconds, gaps.filter(gap => gap > 34).length]);
    };
    requestAnimationFrame(frame);
})"""


class Cost(NamedTuple):
    """The cost of an open page."""

    closed: float
    """Share of a core that an idle sidecar uses while no page is open."""
    open: float
    """The same with an open page."""
    frames: float
    """Frames a second in the browser."""
    late: int
    """Frames that came after two intervals or more."""


async def measure(seconds: float) -> dict[str, Grid]:
    """Return the table; none if there is no browser."""
    if browser_binary() is None:
        return {}
    rows = []
    for number in MODELS:
        cost = await cost_of(number, seconds)
        rows.append(
            [
                *(str(number), str(ENDPOINTS), f"{cost.closed:.2%}", f"{cost.open:.2%}"),
                *(f"{poll_milliseconds(number):.1f}", f"{cost.frames:.1f}", str(cost.late)),
            ]
        )
    headings = ["models", "endpoints", "CPU, closed", "CPU, open", "poll under load, ms"]
    title = "the status page: CPU of the sidecar, and frames in the browser"
    return {"status_page": Grid(title, [*headings, "frames/s", "late frames"], rows, left=0)}


async def cost_of(models: int, seconds: float) -> Cost:
    """Measure the page with this number of models, which share 1,000 endpoints evenly."""
    with tempfile.TemporaryDirectory(prefix="extproc-status-") as directory:
        async with AsyncExitStack() as cleanup:
            sidecar = FileSidecar(document(models), Path(directory))
            cleanup.push_async_callback(sidecar.stop)
            await sidecar.start()
            closed = await _share(sidecar, seconds)
            running = await cleanup.enter_async_context(browser())
            page = await running.new_page(viewport={"width": 1280, "height": 900})
            await page.goto(sidecar.admin)
            await page.wait_for_selector("#endpoints-rows tr:nth-child(20)")
            await page.wait_for_timeout(2000)
            watching = asyncio.create_task(_frames(page, seconds))
            opened = await _share(sidecar, seconds)
            frames, late = await watching
    return Cost(closed, opened, frames, late)


def poll_milliseconds(models: int) -> float:
    """Return the CPU time of one poll if all endpoints have readings and there are requests."""
    fleet = Fleet(monotonic)
    spec = ModelsSpec.model_validate(document(models, "PrefixCache"))
    catalog = revise(Catalog(), spec.models, lambda one: build(one, Random(0), fleet.signals))
    router = Router(fleet, catalog)
    telemetry = Telemetry(fleet, lambda: catalog)
    fleet.signals.set_endpoints(fleet.endpoints)
    for address in fleet.endpoints:
        fleet.signals.record_scrape(address, _REPORT, 0)
    for number in range(STREAMS):
        name = f"model-{number % models:02}"
        decision = router.decide(router.resolve(name, {"prompt": f"{number} " * 500}, {}))
        telemetry.decided(decision, 1e-5)
    report = StatusReport(
        *(fleet, lambda: catalog, telemetry),
        lambda read: model_states(fleet, catalog, read=read),
        lambda: None,
    )
    before = process_time()
    for _ in range(_POLLS):
        msgspec.json.encode(report.document("", 0))
    return 1000 * (process_time() - before) / _POLLS


def document(models: int, strategy: str = "PrefixHash") -> dict[str, Any]:
    """Return a models document with 1,000 endpoints."""
    each = ENDPOINTS // models
    return {
        "models": [
            {
                "name": f"model-{model:02}",
                "endpoints": [
                    f"10.1.{model}.{one % 250}:{8000 + one // 250}" for one in range(each)
                ],
                "loadBalancing": {"strategy": strategy},
            }
            for model in range(models)
        ]
    }


async def _share(sidecar: FileSidecar, seconds: float) -> float:
    """Return the share of a core that the sidecar uses."""
    before = sidecar.cpu_seconds()
    await asyncio.sleep(seconds)
    return (sidecar.cpu_seconds() - before) / seconds


async def _frames(page: Page, seconds: float) -> tuple[float, int]:
    frames, late = await page.evaluate(_FRAMES, seconds)
    return float(frames), int(late)


if __name__ == "__main__":
    for grid in asyncio.run(measure(10.0)).values():
        Console(width=120).print(grid.shown())
