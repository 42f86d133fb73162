"""Where the commands of the laboratory print."""

from __future__ import annotations

import shutil
from typing import NoReturn

from rich.console import Console

_WIDTH = 110
"""Columns that the tables need; a terminal that has fewer folds lines, but loses no figure."""


class Output(Console):
    """Of stdout, or of stderr; as wide as tables need."""

    def __init__(self, *, stderr: bool = False) -> None:
        width = max(_WIDTH, shutil.get_terminal_size((_WIDTH, 24)).columns)
        super().__init__(width=width, highlight=False, stderr=stderr)

    def on_broken_pipe(self) -> NoReturn:
        """The reader has seen enough: the command line knows what to do then."""
        raise BrokenPipeError
