"""Charts of runs, and in the manner of the published ones: PNG files.

Figures are drawn on a canvas of their own: nothing here touches pyplot, a display or what
other code has set. The same figures give the same bytes, so a chart can be kept under version
control. A strategy has its colour in all charts; the colours are of Paul Tol's "muted"
scheme, which colour-blind people can tell apart.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from io import BytesIO
from itertools import cycle
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from PIL import Image

from extproc.lab.measures.run import Run
from extproc.lab.measures.serving import Summary, summarize

Values = Sequence[float | None]

_COLOURS = {
    "Random": "#999999",
    "RoundRobin": "#88CCEE",
    "LeastLoad": "#332288",
    "PrefixHash": "#CC6677",
    "LeastRequest": "#DDCC77",
    "LeastQueue": "#44AA99",
    "LeastKVCache": "#117733",
    "QueueKVCache": "#999933",
    "LoraQueue": "#AA4499",
    "LoraKVCache": "#882255",
    "LowLatency": "#000000",
}
_OTHER_COLOURS = ("#56B4E9", "#E69F00", "#009E73", "#F0E442", "#0072B2", "#D55E00")
_LINES = ("-", "--", "-.", ":")
_HATCH = "////"
_DPI = 100
_PALETTE = 128
_MOST_LABELS = 30
_POINTS = np.linspace(0, 100, 401)


def compare(runs: Sequence[Run], path: Path) -> None:
    """Four panels of one workload's runs: TTFT's distribution, its figures, throughput, and cache
    hits (where nobody knows them, how evenly the requests were spread).
    """
    summaries = [summarize(run) for run in runs]
    figure = Figure(figsize=(10, 7), layout="constrained")
    figure.suptitle(", ".join(dict.fromkeys(run.workload for run in runs)))
    (distribution, times), (throughput, last) = figure.subplots(2, 2)
    names = [run.strategy for run in runs]
    colours = _colours(names)
    _distribution(distribution, runs, colours)
    ttfts = [[one.mean_ttft_ms, one.median_ttft_ms, one.p99_ttft_ms] for one in summaries]
    _grouped(times, ("mean", "median", "p99"), ttfts, [None] * len(ttfts), colours)
    times.set(title="TTFT (ms)", yscale=_logarithmic(ttfts))
    tokens: Values = [summary.total_token_throughput for summary in summaries]
    _one_each(throughput, "Total token throughput (tok/s)", names, tokens, colours)
    title, values = _sharing(summaries)
    _one_each(last, title, names, values, colours)
    _save(figure, path)


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
    """Bars in groups, such as a load each; of each series (a strategy) one bar to a group.

    A published value stands beside the series' own as a hatched bar. None leaves a place empty.
    """
    figure = Figure(figsize=(9, 5), layout="constrained")
    axes = figure.subplots()
    names, colours = list(series), _colours(list(series))
    theirs = [(published or {}).get(name) for name in names]
    _grouped(axes, groups, list(series.values()), theirs, colours)
    drawn = [*series.values(), *(values for values in theirs if values)]
    axes.set(title=title, ylabel=unit, yscale=_logarithmic(drawn) if log else "linear")
    handles = [Patch(color=colour) for colour in colours]
    if published:
        handles.append(Patch(facecolor="white", edgecolor="#444444", hatch=_HATCH))
        names.append("published")
    figure.legend(handles, names, loc="outside lower center", ncols=6, fontsize=8)
    _save(figure, path)


def _distribution(axes: Axes, runs: Sequence[Run], colours: Sequence[str]) -> None:
    """Share of the requests that had their first token within a time."""
    for position, run in enumerate(runs):
        times = (run.first - run.sent)[run.succeeded] * 1e3
        at = np.percentile(times, _POINTS) if times.size else np.full(_POINTS.size, np.nan)
        # A logarithmic axis has no place for 0.
        at = np.maximum(at, 0.01)
        line = _LINES[position % len(_LINES)]
        axes.plot(at, _POINTS, line, color=colours[position], label=run.strategy)
    axes.set(title="Requests with their first token within a time (%)", xlabel="TTFT (ms)")
    axes.set(xscale="log" if any(run.succeeded.any() for run in runs) else "linear", ylim=(0, 101))
    axes.grid(visible=True, alpha=0.3)
    axes.legend(fontsize=8, loc="lower right")


def _sharing(summaries: Sequence[Summary]) -> tuple[str, Values]:
    hits: Values = [None if one.hit_rate is None else 100 * one.hit_rate for one in summaries]
    if any(value is not None for value in hits):
        return "Prefix cache hit rate (% of the prompts' tokens)", hits
    spread: Values = [summary.load_spread for summary in summaries]
    return "Load spread (requests of the busiest endpoint over the mean)", spread


def _one_each(
    axes: Axes, title: str, names: Sequence[str], values: Values, colours: Sequence[str]
) -> None:
    drawn = axes.bar(range(len(names)), _heights(values), color=list(colours))
    axes.bar_label(drawn, _labels(values), fontsize=7, padding=2)
    # A row of many names, or of long ones, would run into each other.
    crowded = sum(len(name) for name in names) > 45
    rotation, align = (20, "right") if crowded else (0, "center")
    axes.set_xticks(range(len(names)), names, fontsize=8, rotation=rotation, ha=align)
    axes.set_title(title)
    axes.margins(y=0.12)


def _grouped(
    axes: Axes,
    groups: Sequence[str],
    ours: Sequence[Values],
    published: Sequence[Values | None],
    colours: Sequence[str],
) -> None:
    """Of each series a bar to a group, and right of it the published one where there are any."""
    each = 2 if any(published) else 1
    bars_of_group = each * len(ours)
    width = 0.84 / max(bars_of_group, 1)
    labels = bars_of_group * len(groups) <= _MOST_LABELS
    places = np.arange(len(groups))
    for position, (values, theirs, colour) in enumerate(zip(ours, published, colours, strict=True)):
        at = places + (each * position - (bars_of_group - 1) / 2) * width
        drawn = [(axes.bar(at, _heights(values), width, color=colour), values)]
        if theirs:
            heights = _heights(theirs)
            hatched = axes.bar(
                at + width, heights, width, facecolor="white", edgecolor=colour, hatch=_HATCH
            )
            drawn.append((hatched, theirs))
        for container, shown in drawn if labels else []:
            axes.bar_label(container, _labels(shown), fontsize=6, rotation=90, padding=2)
    axes.set_xticks(places, list(groups))
    axes.margins(y=0.22)


def _logarithmic(drawn: Sequence[Values]) -> str:
    """The scale, where there is anything for it to show."""
    return "log" if any(value and value > 0 for values in drawn for value in values) else "linear"


def _heights(values: Values) -> list[float]:
    return [math.nan if value is None else value for value in values]


def _labels(values: Values) -> list[str]:
    return [
        "" if math.isnan(value) else f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
        for value in _heights(values)
    ]


def _colours(names: Sequence[str]) -> list[str]:
    """A strategy's own, if it has one that is not taken by another run of it."""
    others = cycle(_OTHER_COLOURS)
    taken: list[str] = []
    for name in names:
        own = _COLOURS.get(name)
        taken.append(own if own and own not in taken else next(others))
    return taken


def _save(figure: Figure, path: Path) -> None:
    """With a palette, which makes a chart a third as large, and without metadata, which change."""
    FigureCanvasAgg(figure)
    drawn = BytesIO()
    figure.savefig(drawn, format="png", dpi=_DPI)
    image = Image.open(drawn).convert("RGB")
    image.quantize(_PALETTE, dither=Image.Dither.NONE).save(path, "PNG", optimize=True)
