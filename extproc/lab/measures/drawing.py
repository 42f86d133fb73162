"""Colors, bars and files that the charts share.

Figures are drawn on their own canvas. Nothing here uses pyplot or a display.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from io import BytesIO
from itertools import cycle
from pathlib import Path
from typing import NamedTuple

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter
from PIL import Image

Values = Sequence[float | None]

HATCH = "////"

COLORS = {
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
"""Colors of Paul Tol's "muted" scheme, which color-blind people can distinguish."""

_OTHER_COLORS = ("#56B4E9", "#E69F00", "#009E73", "#F0E442", "#0072B2", "#D55E00")
_DPI = 100
_PALETTE = 128
_MOST_LABELS = 30


class Theme(NamedTuple):
    """Colors for a page with a light or a dark background."""

    text: str
    grid: str
    colors: Mapping[str, str]


LIGHT = Theme(
    "#1f2328",
    "#d1d9e0",
    {
        "Random": "#767676",
        "LeastLoad": "#0072B2",
        "PrefixHash": "#D55E00",
        "PrefixCache": "#00805C",
    },
)
DARK = Theme(
    "#f0f6fc",
    "#3d444d",
    {
        "Random": "#9AA0A6",
        "LeastLoad": "#56B4E9",
        "PrefixHash": "#E69F00",
        "PrefixCache": "#2BC79A",
    },
)
"""Both use hues of the Okabe-Ito scheme, with a contrast of at least 3 to the background."""


def colors_of(names: Sequence[str]) -> list[str]:
    """Return a color for each name: a strategy's own, or another if that one is already used."""
    others = cycle(_OTHER_COLORS)
    taken: list[str] = []
    for name in names:
        own = COLORS.get(name)
        taken.append(own if own and own not in taken else next(others))
    return taken


def grouped(
    axes: Axes,
    groups: Sequence[str],
    ours: Sequence[Values],
    published: Sequence[Values | None],
    colors: Sequence[str],
    label_size: int = 6,
) -> None:
    """Draw a bar for each series in each group, with its published bar at the right if given."""
    each = 2 if any(published) else 1
    bars_of_group = each * len(ours)
    width = 0.84 / max(bars_of_group, 1)
    labels = bars_of_group * len(groups) <= _MOST_LABELS
    places = np.arange(len(groups))
    for position, (values, theirs, color) in enumerate(zip(ours, published, colors, strict=True)):
        at = places + (each * position - (bars_of_group - 1) / 2) * width
        drawn = [(axes.bar(at, heights(values), width, color=color), values)]
        if theirs:
            hatched = axes.bar(
                at + width,
                heights(theirs),
                width,
                facecolor="white",
                edgecolor=color,
                hatch=HATCH,
            )
            drawn.append((hatched, theirs))
        for container, shown in drawn if labels else []:
            axes.bar_label(container, labels_of(shown), fontsize=label_size, rotation=90, padding=2)
    axes.set_xticks(places, list(groups))
    axes.margins(y=0.22)


def scale_of(drawn: Sequence[Values]) -> str:
    """Return "log" if there is a positive value to show, else "linear"."""
    return "log" if any(value and value > 0 for values in drawn for value in values) else "linear"


def heights(values: Values) -> list[float]:
    """Return the values with NaN for None, which leaves an empty space."""
    return [math.nan if value is None else value for value in values]


def labels_of(values: Values) -> list[str]:
    """Return the text at each bar's end."""
    return [
        "" if math.isnan(value) else f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
        for value in heights(values)
    ]


def save_png(figure: Figure, path: Path) -> None:
    """Write a PNG file with a palette (a third of the size) and without metadata (which change)."""
    FigureCanvasAgg(figure)
    drawn = BytesIO()
    figure.savefig(drawn, format="png", dpi=_DPI)
    image = Image.open(drawn).convert("RGB")
    image.quantize(_PALETTE, dither=Image.Dither.NONE).save(path, "PNG", optimize=True)


def save_svg(figure: Figure, path: Path) -> None:
    """Write an SVG file with a transparent background and without a date."""
    FigureCanvasSVG(figure)
    with matplotlib.rc_context():
        # Text stays text: smaller, and readable for tests and screen readers.
        matplotlib.rcParams["svg.fonttype"] = "none"
        matplotlib.rcParams["svg.hashsalt"] = "extproc"  # the default is random
        matplotlib.rcParams["font.sans-serif"] = ["DejaVu Sans", "Verdana", "Arial"]
        figure.savefig(path, format="svg", transparent=True, metadata={"Date": None})


def apply(theme: Theme, axes: Axes) -> None:
    """Give the axes the theme's colors, with horizontal grid lines only.

    The bars have labels, so the axis needs no numbers.
    """
    axes.set_axisbelow(True)
    axes.minorticks_off()
    axes.yaxis.set_major_formatter(NullFormatter())
    axes.grid(visible=True, axis="y", color=theme.grid, linewidth=0.6)
    axes.tick_params(colors=theme.text, length=0)
    axes.title.set_color(theme.text)
    for spine in axes.spines.values():
        spine.set_visible(False)
    for text in axes.texts:
        text.set_color(theme.text)
