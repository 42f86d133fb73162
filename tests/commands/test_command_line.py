"""The command line as a whole."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from extproc import __version__
from extproc.cli import main
from tests.commands.running import refused

Capture = pytest.CaptureFixture[str]


def imported_by(*command: str) -> set[str]:
    """Return the modules that a process has imported when a command ends."""
    run = subprocess.run(
        [sys.executable, "-c", ALL_IMPORTED, json.dumps(command)],
        capture_output=True,
        text=True,
        check=True,
    )
    return set(json.loads(run.stdout.splitlines()[-1]))


ALL_IMPORTED = """
import json, sys
given = json.loads(sys.argv[1])
from extproc.cli import main
try:
    main(given)
except SystemExit:
    pass
print(json.dumps(sorted(sys.modules)))
"""


class TestCommandLine:
    @pytest.mark.parametrize("command", [[], ["serve"], ["check"], ["explain"]])
    def test_has_help_for_every_command(self, command: list[str], capsys: Capture) -> None:
        with pytest.raises(SystemExit) as exit_:
            main([*command, "--help"])
        assert exit_.value.code == 0
        assert "usage: extproc" in capsys.readouterr().out

    def test_prints_its_version(self, capsys: Capture) -> None:
        with pytest.raises(SystemExit) as exit_:
            main(["--version"])
        assert exit_.value.code == 0
        assert capsys.readouterr().out == f"extproc {__version__}\n"

    def test_runs_as_a_module(self) -> None:
        run = subprocess.run(
            [sys.executable, "-m", "extproc", "--version"], capture_output=True, text=True
        )
        assert (run.returncode, run.stdout) == (0, f"extproc {__version__}\n")

    def test_prints_its_version_without_importing_the_application(self) -> None:
        slow = {
            *("extproc.app", "extproc.commands.serve", "extproc.core.conversation.state_machine"),
            *("aiohttp", "asyncio", "google.protobuf", "grpc", "importlib.metadata"),
            *("kubernetes", "pydantic", "yaml"),
        }
        assert slow & imported_by("--version") == set()

    def test_checks_a_document_without_importing_the_sidecar(self, models: Path) -> None:
        sidecar = {"extproc.app", "extproc.edge", "aiohttp", "grpc", "kubernetes"}
        assert sidecar & imported_by("check", str(models)) == set()

    @pytest.mark.parametrize(
        ("arguments", "says"),
        [
            ([], "required: COMMAND"),
            (["fly"], "invalid choice: 'fly'"),
            (["serve", "--models", "m", "--listen", "9002"], "'9002' is neither HOST:PORT nor"),
            (["serve", "--models", "m", "--listen", ":9002"], "':9002' is neither HOST:PORT nor"),
            (["serve", "--models", "m", "--listen", "unix:"], "'unix:' is neither HOST:PORT nor"),
            (["serve", "--models", "m", "--listen", "h:99999"], "'h:99999' is neither HOST:PORT"),
            (["serve", "--models", "m", "--admin", "h:x"], "'h:x' is neither HOST:PORT"),
            (["serve", "--models", "m", "--grace", "soon"], "'soon' is not a number of seconds"),
            (["serve", "--models", "m", "--grace", "-1"], "'-1' is not a number of seconds"),
            (["serve", "--models", "m", "--grace", "nan"], "'nan' is not a number of seconds"),
            (["serve", "--models", "m", "--grace", "inf"], "'inf' is not a number of seconds"),
            (["serve", "--models", "m", "--log-level", "loud"], "'loud' is not one of debug,"),
            (["serve", "--models", "m", "--unknown-paths", "no"], "is not one of refuse, pass"),
            (["serve", "--models", "m", "--log-format", "xml"], "'xml' is not one of text, json"),
            (
                ["serve", "--models", "m", "--fast"],
                "unrecognized arguments: --fast (see extproc serve --help)",
            ),
            (["serve", "--models-configmap", "models"], "'models' is not NAMESPACE/NAME"),
            (["serve", "--models-configmap", "a/b/c"], "'a/b/c' is not NAMESPACE/NAME"),
            (["serve", "--models-configmap", "/b"], "'/b' is not NAMESPACE/NAME"),
            (["serve", "--models-configmap", "a/"], "'a/' is not NAMESPACE/NAME"),
            (["serve", "--models-configmap", "a/B"], "'a/B' is not NAMESPACE/NAME"),
            (["serve", "--dns-server", "dns.example"], "'dns.example' is not IP or IP:PORT"),
            (["serve", "--dns-server", "10.0.0.1:x"], "'10.0.0.1:x' is not IP or IP:PORT"),
            (["serve", "--dns-server", "10.0.0.1:0"], "'10.0.0.1:0' is not IP or IP:PORT"),
            (["serve", "--dns-server", "[::1]"], "'[::1]' is not IP or IP:PORT"),
            (["check"], "required: FILE"),
            (["check", ""], "argument FILE: the name of the file is empty"),
            (["serve", "--models", ""], "argument --models: the name of the file is empty"),
            (["explain"], "required: --models"),
            (["explain", "--models", "m", "--header", "x"], "'x' is not NAME:VALUE"),
            (["explain", "--models", "m", "--header", ":x"], "':x' is not NAME:VALUE"),
            (["explain", "--models", "m", "--inflight", "10"], "'10' is not IP:PORT=N"),
            (["explain", "--models", "m", "--inflight", "a=-1"], "'a=-1' is not IP:PORT=N"),
            (["explain", "--models", "m", "--head", "x"], "'x' is not a number of bytes"),
            (["explain", "--models", "m", "--head=-1"], "-1"),
        ],
    )
    def test_reports_a_bad_argument_in_one_line(
        self, arguments: list[str], says: str, capsys: Capture
    ) -> None:
        line = refused(capsys, *arguments)
        assert says in line
        assert line.startswith("extproc")
