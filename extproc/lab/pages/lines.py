"""Lines of Markdown: headings, paragraphs and tables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from textwrap import wrap

Row = Sequence[str]

NOTHING = "-"
WIDTH = 120


def heading(text: str, level: int = 2) -> Iterator[str]:
    yield ""
    yield f"{'#' * level} {text}"
    yield ""


def paragraph(text: str) -> list[str]:
    return wrap(text, WIDTH, break_on_hyphens=False)


def table(header: Row, rows: Iterable[Row]) -> Iterator[str]:
    yield ""
    yield row(header)
    yield "|" + "---|" * len(header)
    yield from map(row, rows)


def row(cells: Row) -> str:
    return "| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |"


def code(text: str) -> str:
    return f"`{text}`" if text else NOTHING


def codes(texts: Iterable[str]) -> str:
    return ", ".join(map(code, texts))
