"""The charts of a report, as SVG elements whose colors follow the page's theme."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from io import StringIO

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from extproc.lab.measures.charts import LINES, distribution
from extproc.lab.measures.drawing import (
    DARK,
    LIGHT,
    OTHER_COLORS,
    PALETTE,
    apply,
    colors_of,
    grouped,
    save_svg,
    scale_of,
)
from extproc.lab.measures.run import Floats, Run
from extproc.lab.measures.serving import summarize

_PERIODS = 24
"""Periods of a run for which the hits are drawn."""

_SIZE = (8.5, 3.6)

VARIABLES: Mapping[str, tuple[str, str]] = {
    "--text": (LIGHT.text, DARK.text),
    "--grid": (LIGHT.grid, DARK.grid),
    **{f"--{name.lower()}": colors for name, colors in PALETTE.items()},
    **{f"--other-{number}": colors for number, colors in enumerate(OTHER_COLORS)},
}
"""Variables of the page's style: the color on a light and on a dark background."""

_NAMES = {light.lower(): name for name, (light, _) in VARIABLES.items()}


def ttft_distribution(runs: Sequence[Run]) -> str:
    """Draw the share of requests that had their first token within each time."""
    return _drawn(runs, lambda axes, colors: distribution(axes, runs, colors))


def ttft_statistics(runs: Sequence[Run]) -> str:
    """Draw the mean, the median and the p99 of TTFT."""
    found = [summarize(run) for run in runs]
    values = [[one.mean_ttft_ms, one.median_ttft_ms, one.p99_ttft_ms] for one in found]

    def draw(axes: Axes, colors: Sequence[str]) -> None:
        nothing = [None] * len(values)
        grouped(axes, ("mean", "median", "p99"), values, nothing, colors, label_size=8)
        scale = scale_of(values)
        axes.set(title=f"TTFT (ms{', log scale' if scale == 'log' else ''})", yscale=scale)
        apply(LIGHT, axes)
        handles = [Patch(color=color) for color in colors]
        names = [run.strategy for run in runs]
        axes.legend(
            handles, names, fontsize=8, frameon=False, labelcolor=LIGHT.text, loc="upper left"
        )

    return _drawn(runs, draw)


def hits_over_time(runs: Sequence[Run]) -> str:
    """Draw the share of prompt tokens that were in caches, by the time of sending.

    Return an empty text if no run knows its hits.
    """
    if not any((run.cached_tokens >= 0).any() for run in runs):
        return ""

    def draw(axes: Axes, colors: Sequence[str]) -> None:
        for position, (run, color) in enumerate(zip(runs, colors, strict=True)):
            times, shares = _hits(run)
            line = LINES[position % len(LINES)]
            axes.plot(times, shares, line, color=color, label=run.strategy)
        axes.set(title="Prefix cache hits (% of the prompts' tokens)", ylim=(0, 101))
        axes.set_xlabel("time of sending (s since the run's start)")
        apply(LIGHT, axes, numbers=True)
        axes.legend(fontsize=8, frameon=False, labelcolor=LIGHT.text)

    return _drawn(runs, draw)


def spread(runs: Sequence[Run]) -> str:
    """Draw the requests of each endpoint, the busiest first. Empty if endpoints are unknown."""
    endpoints = max((int(run.endpoint.max(initial=-1)) for run in runs), default=-1) + 1
    if endpoints == 0:
        return ""

    def draw(axes: Axes, colors: Sequence[str]) -> None:
        ranks = np.arange(1, endpoints + 1)
        for position, (run, color) in enumerate(zip(runs, colors, strict=True)):
            counts = np.bincount(run.endpoint[run.endpoint >= 0], minlength=endpoints)
            relative = np.sort(counts)[::-1] / max(counts.mean(), 1e-9)
            line = LINES[position % len(LINES)]
            axes.plot(ranks, relative, line, color=color, marker="o", ms=3, label=run.strategy)
        axes.set(title="Requests of each endpoint (1 = the mean of all)", ylim=(0, None))
        axes.set_xlabel("endpoints, the busiest first")
        apply(LIGHT, axes, numbers=True)
        axes.legend(fontsize=8, frameon=False, labelcolor=LIGHT.text)

    return _drawn(runs, draw)


def _hits(run: Run) -> tuple[Floats, Floats]:
    """Return the middle of each period, and the hits of the requests that were sent in it."""
    known = (run.cached_tokens >= 0) & run.succeeded
    edges = np.linspace(0, max(float(run.sent.max(initial=0)), 1e-9), _PERIODS + 1)
    period = np.clip(np.searchsorted(edges, run.sent[known], side="right") - 1, 0, _PERIODS - 1)
    prompts = np.bincount(period, run.prompt_tokens[known], _PERIODS)
    cached = np.bincount(period, run.cached_tokens[known], _PERIODS)
    shares = np.divide(100 * cached, prompts, out=np.full(_PERIODS, np.nan), where=prompts > 0)
    there = ~np.isnan(shares)
    return ((edges[:-1] + edges[1:]) / 2)[there], shares[there]


def _drawn(runs: Sequence[Run], draw: Callable[[Axes, Sequence[str]], None]) -> str:
    figure = Figure(figsize=_SIZE, layout="constrained")
    draw(figure.subplots(), colors_of([run.strategy for run in runs]))
    written = StringIO()
    save_svg(figure, written)
    element = written.getvalue()
    element = re.sub(r"<metadata>.*?</metadata>", "", element[element.index("<svg") :], flags=re.S)
    # Colors are variables, so that one drawing fits both themes.
    return re.sub(r"#[0-9a-f]{6}", _variable, element)


def _variable(color: re.Match[str]) -> str:
    name = _NAMES.get(color[0])
    return color[0] if name is None else f"var({name})"
