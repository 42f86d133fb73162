"""The cost of the status page with 1,000 endpoints: CPU time of the sidecar, and frames a second.

python -m extproc.lab.bench.status_page
"""

from __future__ import annotations

import asyncio
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from extproc.lab.pages.browser import NO_BROWSER, browser, browser_binary
from extproc.lab.stack.sidecar import FileSidecar

if TYPE_CHECKING:
    from playwright.async_api import Page

ENDPOINTS = 1000
SECONDS = 10.0

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
    """The cost of the page with one models document."""

    models: int
    endpoints: int
    closed: float
    """Share of a core that the sidecar uses while no page is open."""
    open: float
    """The same with an open page."""
    frames: float
    """Frames a second in the browser."""
    late: int
    """Frames that came after two intervals or more."""


async def measure(models: int, seconds: float = SECONDS) -> Cost:
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
    return Cost(models, ENDPOINTS, closed, opened, frames, late)


def document(models: int) -> dict[str, Any]:
    """Return a models document with 1,000 endpoints."""
    each = ENDPOINTS // models
    return {
        "models": [
            {
                "name": f"model-{model:02}",
                "endpoints": [
                    f"10.1.{model}.{one % 250}:{8000 + one // 250}" for one in range(each)
                ],
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


def lines(costs: list[Cost]) -> list[str]:
    """Return a table."""
    head = "models  endpoints  closed    open  frames/s  late frames"
    return [
        head,
        *(
            f"{one.models:6}  {one.endpoints:9}  {one.closed:6.2%}  {one.open:6.2%}"
            f"  {one.frames:8.1f}  {one.late:11}"
            for one in costs
        ),
    ]


async def main() -> None:
    """Measure and print."""
    if browser_binary() is None:
        print(f"status page not measured: {NO_BROWSER}")
        return
    print(*lines([await measure(50), await measure(1)]), sep="\n")


if __name__ == "__main__":
    asyncio.run(main())
