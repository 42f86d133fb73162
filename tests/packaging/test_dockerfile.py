"""The Dockerfile's own commands, replayed without Docker, with the image's Python if it is here."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from extproc import __version__
from tests.packaging.image import ROOT, copy_builder_files

DOCKERFILE = (ROOT / "Dockerfile").read_text()
SECONDS = 1_200  # for a busy machine: alone it takes three minutes


def image_python() -> str | None:
    """Return a Python of the image's version, with headers for the compiler; None if none runs."""
    (version, *_) = re.findall(r"^FROM python:(\d+\.\d+)", DOCKERFILE, re.MULTILINE)
    python = shutil.which(f"python{version}")
    code = "import sysconfig; print(sysconfig.get_path('include'))"
    found = (
        subprocess.run([python, "-c", code], capture_output=True, text=True, check=False)
        if python
        else None
    )
    if found is None or not (Path(found.stdout.strip()) / "Python.h").exists():
        return None
    return python


def build_steps() -> list[str]:
    """Return the commands of the build stage, except those that install Debian packages."""
    stage = re.sub(r"^#.*\n", "", DOCKERFILE, flags=re.MULTILINE).split("FROM ")[1]
    steps = re.findall(r"^RUN (.*)$", stage.replace("\\\n", " "), re.MULTILINE)
    return [step for step in steps if "apt-get" not in step]


def test_steps_are_two() -> None:
    assert len(build_steps()) == 2


@pytest.mark.full
def test_steps_install_the_compiled_sidecar(tmp_path: Path) -> None:
    python = image_python()
    if python is None or not any(map(shutil.which, ("cc", "gcc", "clang"))):
        pytest.skip("the image's Python or a C compiler is missing")
    source = tmp_path / "src"
    copy_builder_files(source)
    for lock in (source / "manifests" / "image").glob("*.txt"):
        shutil.copy(lock, source)
    shutil.rmtree(source / "manifests")
    # The base image's Python, which the build may change.
    subprocess.run([python, "-m", "venv", str(tmp_path / "base")], check=True, timeout=SECONDS)
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYTHON", "VIRTUAL_ENV"))
    }
    environment["PATH"] = f"{tmp_path / 'base' / 'bin'}:{os.environ['PATH']}"
    for step in build_steps():
        moved = step.replace("/opt/extproc", f"{tmp_path}/opt").replace(
            "/tmp/wheel", f"{tmp_path}/w"
        )
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", moved],
            cwd=source,
            env=environment,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        assert done.returncode == 0, done.stdout[-2_000:] + done.stderr[-2_000:]
    installed = tmp_path / "opt" / "bin"
    version = subprocess.run(
        [installed / "extproc", "--version"], capture_output=True, text=True, check=True, env={}
    )
    assert version.stdout == f"extproc {__version__} (compiled)\n"
    assert not (installed / "pip").exists()
