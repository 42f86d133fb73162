"""manifests/systemd: a unit for a machine without containers."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from extproc.cli import parsers

UNIT = Path(__file__).parents[2] / "manifests" / "systemd" / "extproc.service"
TEXT = UNIT.read_text()
EXECUTABLE = "/opt/extproc/bin/extproc"


def settings(name: str) -> list[str]:
    return re.findall(rf"^{name}=(.*)$", TEXT, re.MULTILINE)


def test_every_line_is_a_setting_a_section_or_a_comment() -> None:
    sections = re.findall(r"^\[(\w+)\]$", TEXT, re.MULTILINE)
    assert sections == ["Unit", "Service", "Install"]
    for line in TEXT.splitlines():
        assert re.fullmatch(r"(#.*|\[\w+\]|[A-Z]\w+=.*|)", line), line


def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    systemd = shutil.which("systemd-analyze")
    if systemd is None:
        pytest.skip("systemd-analyze is not installed")
    unit = tmp_path / UNIT.name
    # The unit's program is not installed here, but another one is.
    unit.write_text(TEXT.replace(EXECUTABLE, sys.executable))
    ran = subprocess.run([systemd, "verify", str(unit)], capture_output=True, text=True)
    about_the_unit = [line for line in ran.stderr.splitlines() if UNIT.name in line]
    assert about_the_unit == []


def test_sidecar_accepts_the_command_and_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    (command,) = settings("ExecStart")
    program, name, *given = command.split()
    assert program == EXECUTABLE
    for variable in [one for one in os.environ if one.startswith("EXTPROC_")]:
        monkeypatch.delenv(variable)
    for assignment in settings("Environment")[0].split():
        variable, _, value = assignment.partition("=")
        monkeypatch.setenv(variable, value)
    parsed = parsers()[name].parse_args(given)
    assert str(parsed.models) == "/etc/extproc/models.yaml"
    (stop,) = settings("TimeoutStopSec")
    assert float(stop.removesuffix("s")) > parsed.grace


def test_bad_configuration_is_not_tried_again() -> None:
    assert settings("RestartPreventExitStatus") == ["2"]
