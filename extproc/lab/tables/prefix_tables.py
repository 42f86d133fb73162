"""Tables of the page on prefix caches. A row appears when all of it has been simulated."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from extproc.lab import published_rules
from extproc.lab.tables.book import Book
from extproc.lab.tables.contenders import OURS, YARDSTICK
from extproc.lab.tables.markdown import number, percent, table
from extproc.lab.tables.oracle_rows import best_oracle
from extproc.lab.tables.prefix_trials import (
    CUT,
    SHARED,
    SHARES,
    SIDECARS,
    WEIGHED,
    adversary_trials,
    cut_trials,
    scene_trials,
    shared_trials,
    weight_trials,
)
from extproc.lab.tables.scenes import ADVERSARIES
from extproc.lab.tables.trials import SHOWN, WITHOUT, Figures, Trial

_TIMES = {
    "mean_ttft_ms": "mean TTFT (ms)",
    "median_ttft_ms": "p50",
    "p90_ttft_ms": "p90",
    "p99_ttft_ms": "p99",
}
_BEST = ("mean_ttft_ms", "p99_ttft_ms")
"""The shortest of these times in a workload is bold."""


def means(book: Book, trials: Iterable[Trial]) -> list[Figures] | None:
    """Return the means of the trials; None if one is missing."""
    found = [book.mean(trial) for trial in trials]
    known = [one for one in found if one is not None]
    return known if len(known) == len(found) else None


def compared(
    book: Book, scenes: Iterable[str], trials_of: Callable[[str], list[Trial]] = scene_trials
) -> str:
    """Compare the contenders of each scene."""
    rows = []
    for scene in scenes:
        trials = trials_of(scene)
        figures = means(book, trials)
        if figures:
            lines = _lines(figures, percent(book.ceiling(scene)))
            rows += [[scene, one.strategy, *line] for one, line in zip(trials, lines, strict=True)]
            if trials_of is not shared_trials:
                rows += [[scene, *line] for line in _oracle(book, scene)]
    headings = ["workload", "strategy", *_TIMES.values()]
    return _table([*headings, "tokens/s out", "hits", "ceiling", "spread"], rows)


def adversaries(book: Book) -> str:
    """Compare the usual strategies, ours, and the best published rule of each scene."""
    rows = []
    for scene in ADVERSARIES:
        trials = adversary_trials(scene)
        figures = means(book, trials)
        if figures:
            found = {one.strategy: those for one, those in zip(trials, figures, strict=True)}
            best = min(published_rules.names(), key=lambda name: found[name]["mean_ttft_ms"])
            shown = [name for name in found if name == best or name not in published_rules.names()]
            lines = _lines([found[name] for name in shown], percent(book.ceiling(scene)))
            for name, line in zip(shown, lines, strict=True):
                rows.append([scene, name, *line, number_of(found[name]["failed"])])
            rows += [[scene, *line] for line in _oracle(book, scene, failed=True)]
    headings = ["adversary", "strategy", *_TIMES.values(), "tokens/s out", "hits", "ceiling"]
    return _table([*headings, "spread", "failed"], rows)


def several(book: Book) -> str:
    """Show mean TTFT and remaining advantage behind several sidecars, by what they share.

    A cell is empty if it has not been simulated.
    """
    rows = []
    for scene in SHARED:
        whole = means(book, (Trial(scene, YARDSTICK), Trial(scene, OURS)))
        for sidecars in SIDECARS[1:] if whole else ():
            trials = (Trial(scene, OURS, sidecars=sidecars, share=share) for share in SHARES)
            found = map(book.mean, trials)
            cells = [_remaining(whole[0], whole[1], one) if whole and one else "" for one in found]
            if any(cells):
                rows.append([scene, str(sidecars), *cells])
    delays = [f"shared after {share} ms" if share else "nothing shared" for share in SHARES]
    return _table(["workload", "sidecars", *delays], rows)


def _remaining(yardstick: Figures, alone: Figures, now: Figures) -> str:
    kept = left(yardstick, alone, now)
    share = "no advantage" if kept is None else percent(kept)
    return f"{number(now['mean_ttft_ms'])} ms, {share}"


def cut(book: Book) -> str:
    """Show the cost of seeing less of a body."""
    rows = []
    for scene in CUT:
        figures = means(book, cut_trials(scene))
        if figures:
            names = (*SHOWN, "8 MiB, as shipped")
            for shown, line in zip(names, _lines(figures, ""), strict=True):
                times, hits = line[: len(_TIMES)], line[len(_TIMES) + 1]
                rows.append([scene, shown, *times, hits])
    return _table(["workload", "shown part of a body", *_TIMES.values(), "hits"], rows)


def weights(book: Book) -> str:
    """Show mean and p99 TTFT without each of the weights."""
    rows = []
    for scene in WEIGHED:
        for sidecars in (1, 4):
            figures = means(book, weight_trials(scene, sidecars))
            if figures:
                times = [" / ".join(number(one[metric]) for metric in _BEST) for one in figures]
                rows.append([scene, str(sidecars), *times])
    return _table(
        ["workload", "sidecars", "all weights", *(f"no `{one}`" for one in WITHOUT)], rows
    )


def left(yardstick: Figures, alone: Figures, now: Figures) -> float | None:
    """Return the share of the advantage in mean TTFT that remains.

    The full advantage is that of one sidecar over the yardstick behind one. None if there is none.
    """
    name = "mean_ttft_ms"
    advantage = yardstick[name] - alone[name]
    return (yardstick[name] - now[name]) / advantage if advantage > 0 else None


def number_of(count: float) -> str:
    """Format a mean of counts; empty if zero."""
    return f"{count:,.0f}" if count else ""


def _oracle(book: Book, scene: str, *, failed: bool = False) -> list[list[str]]:
    """Return the line of the oracle's best rule, not in bold; nothing if it is unknown."""
    best = best_oracle(book, scene)
    if best is None:
        return []
    (line,) = _lines([best.figures], percent(book.ceiling(scene)))
    count = [number_of(best.figures["failed"])] if failed else []
    return [[best.name, *(cell.strip("*") for cell in line), *count]]


def _lines(figures: Sequence[Figures], ceiling: str) -> list[list[str]]:
    least = {metric: min(one[metric] for one in figures) for metric in _BEST}
    lines = []
    for one in figures:
        times = [
            f"**{number(one[metric])}**"
            if one[metric] == least.get(metric)
            else number(one[metric])
            for metric in _TIMES
        ]
        hits = percent(one.get("hit_rate"))
        spread = f"{one['load_spread']:.2f}"
        lines.append([*times, number(one["output_throughput"]), hits, ceiling, spread])
    return lines


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return table(headings, rows, left=2) if rows else "*Not simulated yet.*"
