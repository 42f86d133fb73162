"""The README's chart of mean and p99 TTFT, drawn from docs/prefix-caches.json."""

from __future__ import annotations

from pathlib import Path

from extproc.lab.measures import charts
from extproc.lab.measures.drawing import DARK, LIGHT
from extproc.lab.tables.book import Book
from extproc.lab.tables.contenders import OURS, YARDSTICK
from extproc.lab.tables.trials import Trial

GROUPS = {
    "kubeai-chat-1600": "chat\n1,600 at a time",
    "kubeai-threads-600": "threads\n600 at a time",
    "saas at 1.25": "SaaS\n1.25 x its pace",
    "codegen at 2": "code generation\n2 x its pace",
}
"""Labels by scene: the scenes with several sidecars that need no downloaded trace."""

STRATEGIES = ("Random", "LeastLoad", YARDSTICK, OURS)

PANELS = {"mean_ttft_ms": "Mean TTFT (ms, log scale)", "p99_ttft_ms": "p99 TTFT (ms, log scale)"}

FILES = {"ttft-light.svg": LIGHT, "ttft-dark.svg": DARK}


def draw(book: Book, directory: Path) -> None:
    """Write the chart once for each theme."""
    directory.mkdir(parents=True, exist_ok=True)
    series = {title: _series(book, metric) for metric, title in PANELS.items()}
    for name, theme in FILES.items():
        charts.panels(directory / name, theme, list(GROUPS.values()), series)


def _series(book: Book, metric: str) -> dict[str, list[float | None]]:
    """Return the figures of each strategy, one for each group; None if not simulated yet."""
    return {
        name: [(book.mean(Trial(scene, name)) or {}).get(metric) for scene in GROUPS]
        for name in STRATEGIES
    }
