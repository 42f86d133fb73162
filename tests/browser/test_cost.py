"""The cost of the status page with 1,000 endpoints."""

from __future__ import annotations

import pytest

from extproc.lab.bench.status_page import MODELS, cost_of, poll_milliseconds
from extproc.lab.pages.browser import NO_BROWSER, browser_binary

pytestmark = pytest.mark.full

LARGEST_SHARE = 0.02
"""Share of a core."""


@pytest.mark.skipif(browser_binary() is None, reason=NO_BROWSER)
@pytest.mark.parametrize("models", MODELS)
async def test_page_runs_smoothly_and_takes_little_cpu_time(models: int) -> None:
    cost = await cost_of(models, 10.0)
    assert cost.frames > 58
    assert cost.open - cost.closed < LARGEST_SHARE


@pytest.mark.parametrize("models", MODELS)
def test_poll_under_load_takes_little_cpu_time(models: int) -> None:
    least = min(poll_milliseconds(models) for _ in range(3))
    assert least / 1000 < LARGEST_SHARE, "there is one poll a second"
