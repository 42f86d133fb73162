"""A headless Chromium, for the tests and the pictures of the status page."""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.async_api import Browser

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")

NO_BROWSER = "there is no Chromium: install the package chromium, or set EXTPROC_BROWSER"


def browser_binary() -> str | None:
    """Return the path of the browser: $EXTPROC_BROWSER, else one on PATH; None without any."""
    named = os.environ.get("EXTPROC_BROWSER")
    return named or next(filter(None, map(shutil.which, _NAMES)), None)


@asynccontextmanager
async def browser() -> AsyncIterator[Browser]:
    """Run a browser. Raises FileNotFoundError if there is none."""
    from playwright.async_api import async_playwright

    binary = browser_binary()
    if binary is None:
        raise FileNotFoundError(NO_BROWSER)
    async with async_playwright() as playwright:
        running = await playwright.chromium.launch(executable_path=binary)
        try:
            yield running
        finally:
            await running.close()
