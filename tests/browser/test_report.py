"""Reports of runs in a real browser."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np
import pytest
from axe_playwright_python.base import AXE_FILE_PATH
from playwright.async_api import BrowserContext

from extproc.lab.measures.report import Report
from extproc.lab.measures.run import Run

pytestmark = pytest.mark.asyncio(loop_scope="session")

LOG = [{"strategy": "PrefixHash", "reason": "bound", "prefix_hash": "0123456789abcdef"}]


def run(strategy: str) -> Run:
    """Return a run of four requests."""
    sent, tokens = np.arange(4.0), np.array([100, 200, 300, 400])
    return Run(
        workload="chat",
        strategy=strategy,
        seconds=5.0,
        wanted=sent,
        sent=sent,
        first=sent + 0.2,
        last=sent + 1,
        prompt_tokens=tokens,
        output_tokens=tokens,
        cached_tokens=tokens // 2,
        endpoint=np.array([0, 1, 1, 2]),
        gaps=np.full(4, 0.01),
    )


async def test_is_readable_for_everyone(chromium: BrowserContext, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    Report("A run", "tests", [run("LeastLoad"), run("PrefixHash")], LOG, "All lines").write(path)
    page = await chromium.new_page()
    said: list[str] = []
    page.on("console", lambda one: said.append(one.text))
    page.on("request", lambda request: said.append(request.url))
    await page.goto(path.as_uri())
    assert said == [path.as_uri()]
    await page.evaluate(AXE_FILE_PATH.read_text())
    looks: tuple[tuple[Literal["light", "dark"], int], ...] = (("light", 1280), ("dark", 360))
    for scheme, width in looks:
        await page.emulate_media(color_scheme=scheme)
        await page.set_viewport_size({"width": width, "height": 800})
        found = await page.evaluate("axe.run()")
        violations = {
            one["id"]: [node["html"] for node in one["nodes"]] for one in found["violations"]
        }
        assert violations == {}, (scheme, width)
        overflows = "document.documentElement.scrollWidth > document.documentElement.clientWidth"
        assert not await page.evaluate(overflows), "only charts and tables scroll sideways"
    await page.close()
