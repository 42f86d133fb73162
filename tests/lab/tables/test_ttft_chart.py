"""The README's chart of TTFT: it shows the committed figures, in a light and a dark theme."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from extproc.lab.measures.drawing import DARK, LIGHT, Theme
from extproc.lab.tables.book import Book
from extproc.lab.tables.prefix_caches import FIGURES, IMAGES
from extproc.lab.tables.trials import Trial
from extproc.lab.tables.ttft_chart import FILES, GROUPS, PANELS, STRATEGIES, draw

DOCS = Path(__file__).parents[3] / "docs"
BACKGROUNDS = ((LIGHT, "#ffffff"), (DARK, "#0d1117"))


def texts(path: Path) -> list[str]:
    """Return the texts in drawing order. The layout may depend on the version of Matplotlib."""
    return [
        text
        for element in ElementTree.parse(path).iter("{http://www.w3.org/2000/svg}text")
        if (text := "".join(element.itertext()).strip())
    ]


def luminance(color: str) -> float:
    shares = [int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [s / 12.92 if s <= 0.04045 else ((s + 0.055) / 1.055) ** 2.4 for s in shares]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    dark, light = sorted([luminance(one), luminance(other)])
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("name", FILES)
class TestCommittedChart:
    def test_shows_the_committed_figures(self, name: str, tmp_path: Path) -> None:
        draw(Book.read(DOCS / FIGURES), tmp_path)
        assert texts(DOCS / IMAGES / name) == texts(tmp_path / name), (
            "run `python -m extproc.lab.tables prefix-caches --only`"
        )

    def test_labels_each_bar_with_its_mean_over_the_seeds(self, name: str) -> None:
        book = Book.read(DOCS / FIGURES)
        shown = texts(DOCS / IMAGES / name)
        for metric in PANELS:
            for scene in GROUPS:
                for strategy in STRATEGIES:
                    figures = book.mean(Trial(scene, strategy))
                    assert figures is not None
                    value = figures[metric]
                    assert (f"{value:,.0f}" if value >= 100 else f"{value:.3g}") in shown

    def test_is_small_and_has_no_date(self, name: str) -> None:
        svg = (DOCS / IMAGES / name).read_text()
        assert len(svg) < 30_000
        assert "<dc:date>" not in svg


def test_the_same_figures_give_the_same_bytes(tmp_path: Path) -> None:
    for directory in ("a", "b"):
        draw(Book.read(DOCS / FIGURES), tmp_path / directory)
    for name in FILES:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_leaves_a_space_for_figures_that_are_missing(tmp_path: Path) -> None:
    draw(Book(), tmp_path)
    for name in FILES:
        assert set(STRATEGIES) <= set(texts(tmp_path / name))
        assert not re.search(r">\d{3,}<", (tmp_path / name).read_text())


@pytest.mark.parametrize("theme", BACKGROUNDS, ids=("light", "dark"))
def test_colors_are_visible_on_the_background(theme: tuple[Theme, str]) -> None:
    colors, background = theme
    assert contrast(colors.text, background) >= 7
    assert set(colors.colors) >= set(STRATEGIES)
    for color in colors.colors.values():
        assert contrast(color, background) >= 3
