"""The numbers of `/debug/state` and `/metrics`, as the page writes them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from tests.browser.conftest import Launch, Scene, settled
from tests.browser.status_page import Row

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
