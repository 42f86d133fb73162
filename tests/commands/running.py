"""Runs commands in this process."""

from __future__ import annotations

import pytest

from extproc.cli import main

Capture = pytest.CaptureFixture[str]


def refused(capsys: Capture, *arguments: object) -> str:
    """Run a command that must refuse its arguments. Return its one line on stderr."""
    with pytest.raises(SystemExit) as exit_:
        main([str(argument) for argument in arguments])
    assert exit_.value.code == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    return line
