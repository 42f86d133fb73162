"""How wide `extproc demo` prints."""

from __future__ import annotations

import os

import pytest

from extproc.lab.demo import command


@pytest.mark.parametrize(
    ("is_terminal", "columns", "width"),
    [(True, 132, 132), (True, 60, 80), (False, 132, 80)],
    ids=["wide terminal", "narrow terminal", "pipe"],
)
def test_the_output_is_as_wide_as_a_terminal_and_never_below_80_columns(
    is_terminal: bool, columns: int, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: is_terminal)
    monkeypatch.setattr(
        "extproc.lab.demo.command.get_terminal_size", lambda: os.terminal_size((columns, 24))
    )
    assert command.output_width() == width
