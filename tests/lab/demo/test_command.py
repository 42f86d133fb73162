"""`extproc demo` and `extproc run`: their arguments, their width, their exit codes."""

from __future__ import annotations

import os
import re
import signal
import socket
import sys
from pathlib import Path
from types import ModuleType

import pytest

from extproc.lab.demo import command, run
from extproc.lab.stack.processes import Process, until


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


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--users", "0"], "'0' is not a whole number of at least 1"),
        (["--turns", "-1"], "'-1' is not a whole number of at least 1"),
        (["--users", "many"], "'many' is not a whole number of at least 1"),
    ],
)
def test_a_count_below_one_is_refused_in_one_line(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit_:
        command.main(arguments)
    assert exit_.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert says in line


@pytest.mark.parametrize("program", [command, run])
@pytest.mark.parametrize(
    ("envoy", "says"),
    [("/nonexistent/envoy", "No such file or directory"), ("false", "envoy did not start")],
)
def test_an_envoy_that_does_not_start_is_reported_without_a_traceback(
    program: ModuleType,
    envoy: str,
    says: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("EXTPROC_ENVOY", envoy)
    assert program.main([]) == 2
    captured = capsys.readouterr().err
    assert says in captured
    assert "Traceback" not in captured


async def test_an_interrupted_demo_stops_every_process_and_prints_no_traceback(
    tmp_path: Path,
) -> None:
    demo = Process("demo", [sys.executable, "-m", "extproc", "demo"], tmp_path)
    demo.spawn()
    try:
        await until(lambda: "Envoy http" in demo.stdout.read_text(), 60, "the stack")
        found = re.search(r"127\.0\.0\.1:(\d+)", demo.stdout.read_text())
        assert found
        demo.signal(signal.SIGINT)
        assert await demo.wait(60) == command.INTERRUPTED
    finally:
        await demo.stop()
    assert demo.error_output() == ""
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", int(found[1])))


def test_a_report_in_a_missing_directory_is_refused_before_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "none" / "report.html"
    assert command.main(["--report", str(path)]) == 2
    assert capsys.readouterr().err == (
        f"extproc demo: --report {path}: there is no such directory\n"
    )
