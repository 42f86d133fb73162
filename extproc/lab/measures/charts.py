"""Charts of runs, also next to published figures: PNG and SVG files.

The same figures give the same bytes, so a chart can be under version control. A strategy has
the same color in all charts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, LogLocator

from extproc.lab.measures.drawing import (
    HATCH,
    LIGHT,
    Theme,
    Values,
    apply,
    colors_of,
    grouped,
    heights,
    labels_of,
    order,
    save_png,
    save_svg,
    scale_of,
)
from extproc.lab.measures.run import Run
from extproc.lab.measures.serving import Summary, summarize

LINES = ("-", "--", "-.", ":")
_MOST_TICKS = 12
_POINTS = np.linspace(0, 100, 401)


def compare(runs: Sequence[Run], path: Path) -> None:
    """Draw four panels of one workload's runs.

    They show the distribution of TTFT, its mean, median and p99, the throughput, and the cache
    hits (if these are unknown, how evenly the requests were spread).
    """
    runs = sorted(runs, key=lambda run: order(run.strategy))
    summaries = [summarize(run) for run in runs]
    figure = Figure(figsize=(10, 7), layout="constrained")
    figure.suptitle(", ".join(dict.fromkeys(run.workload for run in runs)))
    (first, times), (throughput, last) = figure.subplots(2, 2)
    names = [run.strategy for run in runs]
    colors = colors_of(names)
    distribution(first, runs, colors)
    ttfts = [[one.mean_ttft_ms, one.median_ttft_ms, one.p99_ttft_ms] for one in summaries]
    grouped(times, ("mean", "median", "p99"), ttfts, [None] * len(ttfts), colors)
    times.set(title=_with_scale("TTFT (ms)", scale_of(ttfts)), yscale=scale_of(ttfts))
    apply(LIGHT, times)
    tokens: Values = [summary.total_token_throughput for summary in summaries]
    _bar_for_each(throughput, "Total token throughput (tok/s)", names, tokens, colors)
    title, values = _hits_or_spread(summaries)
    _bar_for_each(last, title, names, values, colors)
    for axes in (throughput, last):
        apply(LIGHT, axes)
    save_png(figure, path)


def bars(
    path: Path,
    title: str,
    unit: str,
    groups: Sequence[str],
    series: Mapping[str, Values],
    published: Mapping[str, Values] | None = None,
    *,
    log: bool = False,
) -> None:
    """Draw bars in groups, such as one group for each load, with one bar for each series.

    A series is usually a strategy. Its published value is a hatched bar at the right of its own.
    None leaves an empty space.
    """
    figure = Figure(figsize=(9, 5), layout="constrained")
    axes = figure.subplots()
    names, colors = list(series), colors_of(list(series))
    theirs = [(published or {}).get(name) for name in names]
    grouped(axes, groups, list(series.values()), theirs, colors)
    drawn = [*series.values(), *(values for values in theirs if values)]
    scale = scale_of(drawn) if log else "linear"
    axes.set(title=title, ylabel=_with_scale(unit, scale), yscale=scale)
    apply(LIGHT, axes, numbers=True)
    handles = [Patch(color=color) for color in colors]
    if published:
        handles.append(Patch(facecolor="white", edgecolor=LIGHT.text, hatch=HATCH))
        names.append("published")
    figure.legend(handles, names, loc="outside lower center", ncols=6, fontsize=8, frameon=False)
    save_png(figure, path)


def panels(
    path: Path,
    theme: Theme,
    groups: Sequence[str],
    series_of: Mapping[str, Mapping[str, Values]],
) -> None:
    """Draw an SVG file with a panel of grouped bars for each title, if possible on a log scale.

    The series must have colors in the theme.
    """
    figure = Figure(figsize=(9, 3.4), layout="constrained")
    all_axes = np.atleast_1d(figure.subplots(1, len(series_of), sharey=True))
    names = list(next(iter(series_of.values())))
    colors = [theme.colors[name] for name in names]
    for axes, (title, series) in zip(all_axes, series_of.items(), strict=True):
        values = [series[name] for name in names]
        grouped(axes, groups, values, [None] * len(values), colors, label_size=8)
        axes.set(title=title, yscale=scale_of(values))
        axes.set_xticks(range(len(groups)), list(groups), fontsize=9)
        axes.margins(y=0.3)
        apply(theme, axes)
    handles = [Patch(color=color) for color in colors]
    figure.legend(
        handles,
        names,
        loc="outside lower center",
        ncols=len(names),
        frameon=False,
        labelcolor=theme.text,
    )
    save_svg(figure, path)


def _with_scale(text: str, scale: str) -> str:
    return f"{text}, log scale" if scale == "log" else text


def distribution(axes: Axes, runs: Sequence[Run], colors: Sequence[str]) -> None:
    """Draw the share of requests that received their first token within each time."""
    for position, run in enumerate(runs):
        times = (run.first - run.sent)[run.succeeded] * 1e3
        at = np.percentile(times, _POINTS) if times.size else np.full(_POINTS.size, np.nan)
        at = np.maximum(at, 0.01)  # a logarithmic axis cannot show 0
        line = LINES[position % len(LINES)]
        axes.plot(at, _POINTS, line, color=colors[position], label=run.strategy)
    scale = "log" if any(run.succeeded.any() for run in runs) else "linear"
    axes.set(title="Requests with their first token within a time (%)", xscale=scale, ylim=(0, 101))
    axes.set_xlabel(_with_scale("TTFT (ms)", scale))
    apply(LIGHT, axes, numbers=True)
    if scale == "log":
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5), numticks=_MOST_TICKS))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    axes.legend(fontsize=8, loc="lower right", frameon=False, labelcolor=LIGHT.text)


def _hits_or_spread(summaries: Sequence[Summary]) -> tuple[str, Values]:
    hits: Values = [None if one.hit_rate is None else 100 * one.hit_rate for one in summaries]
    if any(value is not None for value in hits):
        return "Prefix cache hit rate (% of the prompts' tokens)", hits
    spread: Values = [summary.load_spread for summary in summaries]
    return "Load spread (requests of the busiest endpoint over the mean)", spread


def _bar_for_each(
    axes: Axes, title: str, names: Sequence[str], values: Values, colors: Sequence[str]
) -> None:
    drawn = axes.bar(range(len(names)), heights(values), color=list(colors))
    axes.bar_label(drawn, labels_of(values), fontsize=7, padding=2)
    # Many or long names would overlap if they were horizontal.
    crowded = sum(len(name) for name in names) > 45
    rotation, align = (20, "right") if crowded else (0, "center")
    axes.set_xticks(range(len(names)), names, fontsize=8, rotation=rotation, ha=align)
    axes.set_title(title)
    axes.margins(y=0.12)
