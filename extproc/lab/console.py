"""The output of the laboratory's commands."""

from __future__ import annotations

import shutil
from typing import NoReturn

from rich.console import Console

_WIDTH = 110
"""Columns that the tables need. A narrower terminal wraps lines instead of cutting them."""


class Output(Console):
    """A console on stdout or stderr that is wide enough for tables."""

    def __init__(self, *, stderr: bool = False) -> None:
        width = max(_WIDTH, shutil.get_terminal_size((_WIDTH, 24)).columns)
        super().__init__(width=width, highlight=False, stderr=stderr)

    def on_broken_pipe(self) -> NoReturn:
        """Raise BrokenPipeError, which the command line handles."""
        raise BrokenPipeError
