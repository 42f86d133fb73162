"""The wheel, installed: commands, Envoy configurations and the demo, away from any checkout."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import aiohttp
import pytest

from extproc import __version__
from extproc.envoy import envoy_configurations
from extproc.lab.stack.processes import Process, until

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel of this checkout."""
    directory = tmp_path_factory.mktemp("wheel")
    pip("wheel", "--no-build-isolation", "--wheel-dir", str(directory), str(ROOT))
    (path,) = directory.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory that the wheel is installed in, with the command in its `bin`."""
    target = tmp_path_factory.mktemp("installed")
    pip("install", "--target", str(target), str(wheel))
    return target


@pytest.fixture(autouse=True)
def _away_from_the_checkout(
    installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(installed))
    monkeypatch.delenv("EXTPROC_COMPILED", raising=False)


def pip(command: str, *arguments: str) -> None:
    quiet = ["--quiet", "--disable-pip-version-check", "--no-deps", "--no-index"]
    whole = [sys.executable, "-m", "pip", command, *quiet, *arguments]
    run = subprocess.run(whole, capture_output=True, text=True, timeout=300, check=False)
    assert run.returncode == 0, run.stdout + run.stderr


def output(*command: str) -> str:
    run = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert run.returncode == 0, run.stderr
    return run.stdout


def test_the_wheel_is_called_extproc_router(wheel: Path) -> None:
    assert wheel.name == f"extproc_router-{__version__}-py3-none-any.whl"


def test_the_wheel_carries_every_envoy_configuration(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        for path in envoy_configurations():
            assert archive.read(f"extproc/envoy/{path.name}") == path.read_bytes()


def test_the_installed_package_finds_its_own_configurations(installed: Path) -> None:
    code = "from extproc.envoy import envoy_configuration as one; print(one('fail-closed.yaml'))"
    found = output(sys.executable, "-c", code)
    assert Path(found.strip()) == installed / "extproc" / "envoy" / "fail-closed.yaml"


def test_the_installed_command_tells_its_version(installed: Path) -> None:
    assert output(str(installed / "bin" / "extproc"), "--version") == f"extproc {__version__}\n"


async def test_the_demo_runs(installed: Path, tmp_path: Path) -> None:
    command = [str(installed / "bin" / "extproc"), "demo", "--users", "3", "--turns", "2"]
    process = Process("demo", command, tmp_path)
    process.spawn()
    try:
        assert await process.wait(120) == 0, process.error_output()
    finally:
        await process.stop()
    lines = process.stdout.read_text().splitlines()
    assert any(line.startswith("Verdict: ") for line in lines)
    assert [line for line in lines if len(line) > 80] == []


async def test_the_stack_kept_up_answers_the_request_that_it_prints(
    installed: Path, tmp_path: Path
) -> None:
    process = Process("run", [str(installed / "bin" / "extproc"), "run"], tmp_path)
    process.spawn()
    try:
        await until(lambda: "Ctrl-C" in process.stdout.read_text(), 60, "the stack")
        found = re.search(r"curl -N (\S+) -d '(.*)'", process.stdout.read_text())
        assert found
        async with (
            aiohttp.ClientSession() as session,
            session.post(found[1], json=json.loads(found[2])) as response,
        ):
            assert response.status == 200
            assert (await response.read()).endswith(b"data: [DONE]\n\n")
    finally:
        await process.stop()
    assert process.returncode() == 0


def test_a_command_without_its_libraries_names_the_extra(installed: Path) -> None:
    # An isolated Python that sees the package and nothing that it depends on.
    code = f"import sys; sys.path.insert(0, {str(installed)!r})\n"
    code += "from extproc.cli import main; sys.exit(main(['demo']))"
    run = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ},
        check=False,
    )
    assert run.returncode == 2
    assert "is not installed: this command needs extproc-router[demo]" in run.stderr
    assert len(run.stderr.splitlines()) == 1
