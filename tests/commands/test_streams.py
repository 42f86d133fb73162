"""Standard streams that are closed, full, or interrupted."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from extproc.cli import main
from tests.extent import PATIENCE

needs_full = pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")


def shell(command: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run a shell's command in which `extproc` is the command line, with arguments `$1`, `$2`."""
    function = f'extproc() {{ "{sys.executable}" -m extproc "$@"; }}'
    return subprocess.run(
        ["sh", "-c", f"{function}; {command}", "sh", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )


@pytest.mark.parametrize(
    "command",
    [
        'check "$1" >&-',
        'check "$1" <&- >&- 2>&-',
        "schema >&-",
        "--version >&-",
        "completion bash >&-",
        "envoy-config >&-",
        'explain --models "$1" --body "$2" >&-',
        'explain --models "$1" --body "$2" <&-',
    ],
)
def test_closed_stream_is_like_dev_null(command: str, models: Path, body: Path) -> None:
    run = shell(f"extproc {command}", models, body)
    assert (run.returncode, run.stderr) == (0, "")


def test_closed_stdin_is_an_empty_body(models: Path) -> None:
    run = shell('extproc explain --models "$1" <&-', models)
    assert (run.returncode, run.stderr) == (1, "")
    assert "invalid_request" in run.stdout


@needs_full
@pytest.mark.parametrize("command", ["schema", "--version", "--help", "envoy-config"])
def test_output_that_cannot_be_written_is_reported_in_one_line(command: str) -> None:
    run = shell(f"extproc {command} > /dev/full")
    assert run.returncode == 3
    assert run.stderr == "extproc: cannot write the output: No space left on device\n"


@needs_full
def test_exit_code_stays_if_stderr_cannot_be_written(tmp_path: Path) -> None:
    assert shell('extproc check "$1" 2> /dev/full', tmp_path / "none").returncode == 2


def test_interrupt_prints_no_traceback(
    models: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(_: str) -> bytes:
        raise KeyboardInterrupt

    monkeypatch.setattr("extproc.commands.explain._body", interrupted)
    assert main(["explain", "--models", str(models)]) == 130
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_sidecar_drains_cleanly_with_closed_streams(closed: str, models: Path) -> None:
    """A process with uvloop ends if a socket gets the number of a standard stream."""
    addresses = [f"--{name}=unix:{models.parent}/{name}.sock" for name in ("listen", "admin")]
    flags = f'--models "$1" {" ".join(addresses)} --grace 1'
    ready = (
        "import socket, sys, time\n"
        "def ready():\n"
        "    with socket.socket(socket.AF_UNIX) as one:\n"
        "        if one.connect_ex(sys.argv[1]): return False\n"
        "        one.sendall(b'GET /readyz HTTP/1.0\\r\\n\\r\\n')\n"
        "        return b' 200 ' in one.recv(100)\n"
        "while not ready(): time.sleep(0.05)\n"
    )
    run = shell(
        f'"{sys.executable}" -m extproc serve {flags} {closed} & '
        f'"{sys.executable}" -c "$2" {models.parent}/admin.sock; kill -TERM $!; wait $!',
        models,
        ready,
    )
    assert run.returncode == 0, run.stderr
