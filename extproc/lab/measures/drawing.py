"""Colors, bars and files that the charts share.

Figures are drawn on their own canvas. Nothing here uses pyplot or a display.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from io import BytesIO
from itertools import cycle
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple, TextIO

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

OTHER_COLORS = (("#8250DF", "#BE9CFF"), ("#B3404A", "#FF8F97"), ("#1B7C83", "#76E3EA"))
"""Colors for runs that are not of a strategy, for example of published rules."""

_DPI = 100
_PALETTE = 128
_MOST_LABELS = 30


class Theme(NamedTuple):
    """Colors for a page with a light or a dark background."""

    text: str
    grid: str
    colors: Mapping[str, str]


PALETTE: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "Random": ("#767676", "#9AA0A6"),
        "RoundRobin": ("#A65A8B", "#CC79A7"),
        "LeastLoad": ("#0072B2", "#56B4E9"),
        "LeastRequest": ("#7A6A00", "#F0E442"),
        "LeastQueue": ("#2E7F86", "#66C6CC"),
        "LeastKVCache": ("#5B5EA6", "#9FA3F0"),
        "QueueKVCache": ("#6B7A1E", "#B5C75A"),
        "LoraQueue": ("#9A4A2F", "#E09A7A"),
        "LoraKVCache": ("#882255", "#DD7FAA"),
        "LowLatency": ("#3D4451", "#C5CCD6"),
        "Chain": ("#7B5B3A", "#C9A27A"),
        "PrefixHash": ("#D55E00", "#E69F00"),
        "PrefixCache": ("#00805C", "#2BC79A"),
    }
)
"""Colors of the strategies on a light and a dark background, in the order of all charts.

The most compared ones have hues of the Okabe-Ito scheme, which color-blind people can distinguish.
Each color has a contrast of at least 3 to its background.
"""

LIGHT = Theme("#1f2328", "#d1d9e0", {name: light for name, (light, _) in PALETTE.items()})
DARK = Theme("#f0f6fc", "#3d444d", {name: dark for name, (_, dark) in PALETTE.items()})


def order(name: str) -> int:
    """Return a strategy's position in charts. Others come after all strategies."""
    return list(PALETTE).index(name) if name in PALETTE else len(PALETTE)


def colors_of(names: Sequence[str]) -> list[str]:
    """Return a color for each name: a strategy's own, or another if that one is already used."""
    others = cycle(light for light, _ in OTHER_COLORS)
    taken: list[str] = []
    for name in names:
        own = LIGHT.colors.get(name)
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


def save_svg(figure: Figure, path: Path | TextIO) -> None:
    """Write an SVG file with a transparent background and without a date."""
    FigureCanvasSVG(figure)
    with matplotlib.rc_context():
        # Text stays text: smaller, and readable for tests and screen readers.
        matplotlib.rcParams["svg.fonttype"] = "none"
        matplotlib.rcParams["svg.hashsalt"] = "extproc"  # the default is random
        matplotlib.rcParams["font.sans-serif"] = ["DejaVu Sans", "Verdana", "Arial"]
        figure.savefig(path, format="svg", transparent=True, metadata={"Date": None})


def apply(theme: Theme, axes: Axes, *, numbers: bool = False) -> None:
    """Give the axes the theme's colors, with horizontal grid lines only.

    Bars have labels, so their axis needs no numbers. Lines need them.
    """
    axes.set_axisbelow(True)
    axes.minorticks_off()
    if not numbers:
        axes.yaxis.set_major_formatter(NullFormatter())
    axes.grid(visible=True, axis="y", color=theme.grid, linewidth=0.6)
    axes.xaxis.label.set_color(theme.text)
    axes.yaxis.label.set_color(theme.text)
    axes.tick_params(colors=theme.text, length=0)
    axes.title.set_color(theme.text)
    for spine in axes.spines.values():
        spine.set_visible(False)
    for text in axes.texts:
        text.set_color(theme.text)
