"""Targets for PrefixCache and a verdict on each workload."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from extproc.lab.tables.book import Book
from extproc.lab.tables.contenders import CONTENDERS, OURS, YARDSTICK
from extproc.lab.tables.markdown import percent, table
from extproc.lab.tables.prefix_tables import left, means
from extproc.lab.tables.prefix_trials import SHARED, scene_trials, sidecar_trials
from extproc.lab.tables.trials import Figures

NO_WORSE = 1.05
"""Limit for times, as a multiple of the shortest time in the row."""

NO_LESS = 0.98
"""Limit for throughput, as a share of the highest throughput in the row."""

BETTER = {"mooncake at 3": 2.0, "saas at 1.25": 2.0, "codegen at 2": 1.5}
"""Targets at saturation: the yardstick's mean TTFT over ours."""

LEFT = 0.9
"""Target with four sidecars: the share of the advantage over the yardstick that remains."""


def verdicts(book: Book, scenes: Iterable[str]) -> str:
    """Show each target of each row: met or missed, with the figure."""
    rows = []
    for scene in scenes:
        figures = means(book, scene_trials(scene))
        if figures:
            found = dict(zip(CONTENDERS, figures, strict=True))
            rows.append(
                [
                    scene,
                    against_best(found, "mean_ttft_ms"),
                    against_best(found, "p99_ttft_ms"),
                    against_best(found, "output_throughput"),
                    against_yardstick(scene, found),
                    with_four(book, scene),
                ]
            )
    headings = [
        "workload",
        f"mean TTFT within {NO_WORSE} x the best",
        f"p99 TTFT within {NO_WORSE} x the best",
        f"throughput at least {NO_LESS} x the best",
        f"mean TTFT against {YARDSTICK}'s",
        f"{LEFT:.0%} of the advantage with 4 sidecars",
    ]
    return table(headings, rows, left=len(headings)) if rows else "*Not simulated yet.*"


def against_best(found: dict[str, Figures], metric: str) -> str:
    """Compare our figure with the best one, the least time or the highest throughput.

    Variants of ours do not count as the best.
    """
    is_time = metric.endswith("_ms")
    choose: Callable[..., str] = min if is_time else max
    others = [name for name in found if name == OURS or not name.startswith(OURS)]
    best = choose(others, key=lambda name: found[name][metric])
    ratio = found[OURS][metric] / found[best][metric]
    holds = ratio <= NO_WORSE if is_time else ratio >= NO_LESS
    return _verdict(holds, f"{ratio:.3f}" if best == OURS else f"{ratio:.3f}, {best}")


def against_yardstick(scene: str, found: dict[str, Figures]) -> str:
    """Show the yardstick's mean TTFT over ours, and a verdict if there is a target."""
    times = found[YARDSTICK]["mean_ttft_ms"] / found[OURS]["mean_ttft_ms"]
    if scene not in BETTER:
        return f"{times:.2f} x shorter"
    return _verdict(times >= BETTER[scene], f"{times:.2f} x shorter, target {BETTER[scene]:g} x")


def with_four(book: Book, scene: str) -> str:
    """Show a verdict on the remaining advantage; empty if the scene has no such trials."""
    figures = means(book, sidecar_trials(scene)) if scene in SHARED else None
    if not figures:
        return ""
    half = len(figures) // 2
    kept = left(figures[0], figures[half], figures[-1])
    return "no advantage" if kept is None else _verdict(kept >= LEFT, percent(kept))


def _verdict(holds: bool, figure: str) -> str:
    return f"yes ({figure})" if holds else f"**no ({figure})**"
