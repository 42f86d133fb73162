"""A table of formatted cells, for the terminal, JSON and the page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.table import Table

from extproc.lab.tables import markdown

Cells = Sequence[str]


@dataclass(frozen=True)
class Grid:
    """Headings and rows; an empty row separates two groups."""

    title: str
    headings: Cells
    rows: Sequence[Cells]
    left: int = 1
    """Number of first columns that are text; the others are figures."""

    def shown(self) -> Table:
        """Return the table for the terminal."""
        table = Table(title=self.title, title_justify="left")
        for position, heading in enumerate(self.headings):
            table.add_column(heading, justify="left" if position < self.left else "right")
        for row in self.rows:
            if row:
                table.add_row(*row)
            else:
                table.add_section()
        return table

    def markdown(self) -> str:
        """Return the table for the page, without the title."""
        return markdown.table(self.headings, [row for row in self.rows if row], self.left)
