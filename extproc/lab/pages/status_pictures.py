"""The pictures of the status page in the documentation: `make pictures`.

They show the demo's stack under chat traffic. The page is the same in light and in dark; the model
has another strategy, and flow control only in light.
"""

from __future__ import annotations

import asyncio
import io
import sys
import tempfile
from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

from PIL import Image

from extproc.lab.demo.chat import Workload, drive
from extproc.lab.demo.stack import MODEL, start
from extproc.lab.pages.browser import NO_BROWSER, browser, browser_binary

if TYPE_CHECKING:
    from playwright.async_api import Browser, Page

    from extproc.lab.demo.stack import Stack

COLORS = 96
"""Colors of a picture, which keep it small."""

_WORKLOAD = Workload(users=64, turns=50)
_SECONDS = 7.0
"""Seconds of traffic before a picture."""


class Picture(NamedTuple):
    """One picture of the page."""

    name: str
    strategy: str
    scheme: Literal["light", "dark"]
    width: int
    height: int
    flow_control: Mapping[str, object] | None = None


PICTURES = (
    Picture("light", "PrefixCache", "light", 1280, 1500, {"maxInflight": 6}),
    Picture("dark", "PrefixHash", "dark", 1280, 1330),
    Picture("phone", "PrefixHash", "light", 390, 1500),
)


async def draw(directory: Path) -> None:
    """Write the pictures to a directory."""
    with tempfile.TemporaryDirectory(prefix="extproc-pictures-") as name:
        async with AsyncExitStack() as cleanup:
            stack = await start(cleanup, Path(name))
            running = await cleanup.enter_async_context(browser())
            for picture in PICTURES:
                content = await _taken(stack, running, picture)
                (directory / f"status-{picture.name}.png").write_bytes(_small(content))


async def _taken(stack: Stack, running: Browser, picture: Picture) -> bytes:
    await stack.use(picture.strategy, picture.flow_control)
    viewport = {"width": picture.width, "height": picture.height}
    page = await running.new_page(viewport=viewport, color_scheme=picture.scheme)  # type: ignore[arg-type]
    await page.goto(stack.gateway.sidecar.admin)
    url = stack.gateway.envoy.url
    traffic = asyncio.create_task(drive([url], MODEL, _WORKLOAD, lambda: None))
    await asyncio.sleep(_SECONDS)
    await _show_spill(page)
    content = await page.screenshot()
    traffic.cancel()
    await asyncio.wait((traffic,))
    await page.close()
    return content


async def _show_spill(page: Page) -> None:
    """Show the last request that spilled on the ring, if there is one."""
    spilled = page.locator("#decisions-rows tr", has_text="bound").first
    if await spilled.count():
        await spilled.locator("button").evaluate("button => button.click()")


def _small(content: bytes) -> bytes:
    """Return the picture with few colors."""
    written = io.BytesIO()
    with Image.open(io.BytesIO(content)) as image:
        image.convert("RGB").quantize(COLORS).save(written, "PNG", optimize=True)
    return written.getvalue()


if __name__ == "__main__":
    if browser_binary() is None:
        sys.exit(NO_BROWSER)
    asyncio.run(draw(Path("docs/images")))
