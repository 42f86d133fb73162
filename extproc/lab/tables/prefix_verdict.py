"""Targets for PrefixCache, a verdict on each workload, and the number of rows that meet each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from extproc.lab.tables.book import Book
from extproc.lab.tables.contenders import OURS, YARDSTICK
from extproc.lab.tables.markdown import percent, table
from extproc.lab.tables.oracle_rows import best_oracle, over_oracle
from extproc.lab.tables.prefix_tables import left, means
from extproc.lab.tables.prefix_trials import SHARED, row_trials
from extproc.lab.tables.trials import Figures, Trial

NO_WORSE = 1.05
"""Limit for times, as a multiple of the best other strategy's."""

NO_LESS = 0.98
"""Limit for throughput, as a share of the best other strategy's."""

AHEAD = 0.95
"""Limit for a mean time that is clearly shorter than the best other strategy's."""

NEAR = 1.25
"""Limit for the mean time, as a multiple of the oracle's."""

BETTER = {"mooncake at 3": 2.0, "saas at 1.25": 2.0, "codegen at 2": 1.5}
"""Targets at saturation: the yardstick's mean TTFT over ours."""

LEFT = 0.95
"""Target with four sidecars that share their state: the share of the advantage over the yardstick
that remains if they know of each other's requests after 25 ms."""

TARGETS = {
    f"mean TTFT within {NO_WORSE} x the best other": "all",
    f"p99 TTFT within {NO_WORSE} x the best other": "all",
    f"throughput at least {NO_LESS} x the best other": "all",
    f"ahead: mean TTFT at most {AHEAD} x the best other": "half",
    f"mean TTFT within {NEAR} x the oracle": "three quarters",
    f"mean TTFT against {YARDSTICK}'s": "all with a target",
    f"{LEFT:.0%} of the advantage with 4 sidecars that share their state": "all with a target",
}
"""Columns of the verdicts, with the rows that have to meet them."""

METRICS = ("mean_ttft_ms", "p99_ttft_ms", "output_throughput")
"""Figures of the first three columns."""

_ORACLE_COLUMNS = len(METRICS) + 1
"""Columns that also compare the oracle with the best other."""


class Judged(NamedTuple):
    """A cell of the verdicts."""

    text: str
    holds: bool | None = None
    """None without a target or without figures."""

    figure: str = ""
    """The ratio and the strategy that it refers to."""


_UNKNOWN = Judged("")


def verdicts(book: Book, scenes: Iterable[str]) -> str:
    """Show each target of each row: met or missed, with the figure."""
    rows = [[scene, *(one.text for one in row)] for scene, row in judged(book, scenes).items()]
    headings = ["workload", *TARGETS]
    return table(headings, rows, left=len(headings)) if rows else "*Not simulated yet.*"


def summary(book: Book, scenes: Iterable[str]) -> str:
    """Show the number of rows that meet each target, also with the oracle's figures."""
    found = judged(book, scenes)
    oracle = [_oracle_row(book, scene) for scene in found]
    rows = []
    for column, (target, required) in enumerate(TARGETS.items()):
        ours = _count(row[column] for row in found.values())
        theirs = _count(row[column] for row in oracle if row) if column < _ORACLE_COLUMNS else ""
        rows.append([target, ours, theirs, required])
    return table(["target", "rows that meet it", "with the oracle", "required"], rows, left=4)


def judged(book: Book, scenes: Iterable[str]) -> dict[str, list[Judged]]:
    """Return the cells of each scene that has been simulated."""
    rows = {}
    for scene in scenes:
        trials = row_trials(scene)
        figures = means(book, trials)
        if figures:
            names = (trial.strategy for trial in trials)
            rows[scene] = _row(book, scene, dict(zip(names, figures, strict=True)))
    return rows


def _row(book: Book, scene: str, found: Mapping[str, Figures]) -> list[Judged]:
    return [
        *(against_best(found, metric) for metric in METRICS),
        ahead(found),
        near_oracle(book, scene),
        against_yardstick(scene, found),
        with_four(book, scene),
    ]


def _oracle_row(book: Book, scene: str) -> list[Judged]:
    """Return the oracle's cells, with the first seed of all contenders; empty if unknown."""
    best = best_oracle(book, scene)
    if best is None:
        return []
    found = {trial.strategy: book.of(trial) for trial in row_trials(scene)}
    others = {name: figures for name, figures in found.items() if figures is not None}
    with_oracle = {**others, OURS: best.figures}
    return [*(against_best(with_oracle, metric) for metric in METRICS), ahead(with_oracle)]


def _count(cells: Iterable[Judged]) -> str:
    """Return how many cells with a verdict meet the target."""
    known = [cell.holds for cell in cells if cell.holds is not None]
    return f"{known.count(True)} of {len(known)}"


def best_other(found: Mapping[str, Figures], metric: str) -> str:
    """Return the other strategy with the least time or the highest throughput.

    Variants of ours do not count.
    """
    choose: Callable[..., str] = min if metric.endswith("_ms") else max
    others = [name for name in found if not name.startswith(OURS)]
    return choose(others, key=lambda name: found[name][metric])


def against_best(found: Mapping[str, Figures], metric: str) -> Judged:
    """Compare our figure with the best one of the others."""
    best = best_other(found, metric)
    ratio = found[OURS][metric] / found[best][metric]
    holds = ratio <= NO_WORSE if metric.endswith("_ms") else ratio >= NO_LESS
    return _verdict(holds, f"{ratio:.3f}, {best}")


def ahead(found: Mapping[str, Figures]) -> Judged:
    """Show if ours is clearly ahead of all others."""
    best = best_other(found, "mean_ttft_ms")
    holds = found[OURS]["mean_ttft_ms"] <= AHEAD * found[best]["mean_ttft_ms"]
    return Judged("yes" if holds else "no", holds)


def near_oracle(book: Book, scene: str) -> Judged:
    """Compare our mean TTFT with that of the oracle's best rule."""
    ratio, best = over_oracle(book, scene), best_oracle(book, scene)
    if ratio is None or best is None:
        return _UNKNOWN
    return _verdict(ratio <= NEAR, f"{ratio:.3f}, {best.rule}")


def against_yardstick(scene: str, found: Mapping[str, Figures]) -> Judged:
    """Show the yardstick's mean TTFT over ours, and a verdict if there is a target."""
    times = found[YARDSTICK]["mean_ttft_ms"] / found[OURS]["mean_ttft_ms"]
    if scene not in BETTER:
        return Judged(f"{times:.2f} x shorter")
    return _verdict(times >= BETTER[scene], f"{times:.2f} x shorter, target {BETTER[scene]:g} x")


def with_four(book: Book, scene: str) -> Judged:
    """Show a verdict on the remaining advantage; empty if the scene has no such trials."""
    several = Trial(scene, OURS, sidecars=4, share=25)
    trials = (Trial(scene, YARDSTICK), Trial(scene, OURS), several)
    figures = means(book, trials) if scene in SHARED else None
    if not figures:
        return _UNKNOWN
    kept = left(*figures)
    return Judged("no advantage") if kept is None else _verdict(kept >= LEFT, percent(kept))


def _verdict(holds: bool, figure: str) -> Judged:
    return Judged(f"yes ({figure})" if holds else f"**no ({figure})**", holds, figure)
