"""A table of finished cells: the same one for the terminal, for JSON and for the page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.table import Table

from extproc.lab.tables import markdown

Cells = Sequence[str]


@dataclass(frozen=True)
class Grid:
    """Headings and rows; an empty row is a rule between two groups."""

    title: str
    headings: Cells
    rows: Sequence[Cells]
    left: int = 1
    """So many first columns are text, the others figures."""

    def shown(self) -> Table:
        """For the terminal."""
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
        """For the page, without the title."""
        return markdown.table(self.headings, [row for row in self.rows if row], self.left)
