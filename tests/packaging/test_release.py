"""The steps of a release: the health check, the bill of materials, the base's digest, workflows."""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from extproc import __version__
from extproc.lab.stack.processes import free_port
from tests.e2e.forked import ForkedFileSidecar
from tests.extent import PATIENCE
from tests.packaging.image import ROOT

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
MODELS = ROOT / "tests" / "packaging" / "models.yaml"


def run(
    *command: str, cwd: Path = ROOT, path: str = "", seconds: float = 2 * PATIENCE
) -> subprocess.CompletedProcess[str]:
    """Run a command, with a directory ahead of others on the PATH."""
    return subprocess.run(
        command,
        cwd=cwd,
        env={**os.environ, "PATH": f"{path}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )


class TestHealthCheck:
    """The command of the Dockerfile's HEALTHCHECK."""

    def command(self, port: int) -> list[str]:
        text = (ROOT / "Dockerfile").read_text()
        found = re.search(r"^HEALTHCHECK .*\\\n +CMD (\[.*\])$", text, re.MULTILINE)
        assert found
        assert ":9090/" in found[1]
        python, *arguments = json.loads(found[1].replace(":9090/", f":{port}/"))
        assert python == "python"
        return [sys.executable, *arguments]

    async def test_succeeds_for_a_sidecar_with_the_models_of_continuous_integration(
        self, tmp_path: Path
    ) -> None:
        sidecar = ForkedFileSidecar(yaml.safe_load(MODELS.read_text()), tmp_path)
        try:
            await sidecar.start()
            port = int(sidecar.admin.rpartition(":")[2])
            assert run(*self.command(port)).returncode == 0
        finally:
            await sidecar.kill()

    def test_fails_without_a_sidecar(self) -> None:
        assert run(*self.command(free_port())).returncode == 1


@pytest.fixture(scope="module")
def bill(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The software bill of materials."""
    path = tmp_path_factory.mktemp("sbom") / "extproc.cdx.json"
    made = run("make", "--silent", "--old-file=.venv/.installed", "sbom", f"SBOM={path}")
    assert made.returncode == 0, made.stderr
    bill: dict[str, Any] = json.loads(path.read_text())
    return bill


class TestBillOfMaterials:
    def test_is_of_this_version(self, bill: dict[str, Any]) -> None:
        assert bill["bomFormat"] == "CycloneDX"
        product = bill["metadata"]["component"]
        assert (product["name"], product["version"]) == ("extproc-router", __version__)

    def test_lists_every_locked_package_with_its_hashes(self, bill: dict[str, Any]) -> None:
        text = (ROOT / "manifests" / "image" / "requirements.txt").read_text()
        entries = re.findall(r"^([\w.-]+)==(\S+) \\\n((?: +--hash.*\n)+)", text, re.MULTILINE)
        locked = {
            f"pkg:pypi/{name}@{version}": set(re.findall(r"sha256:(\w+)", hashes))
            for name, version, hashes in entries
        }
        listed = {
            component["purl"]: {
                found["content"]
                for reference in component["externalReferences"]
                for found in reference["hashes"]
            }
            for component in bill["components"]
        }
        assert listed == locked


@pytest.mark.full
@pytest.mark.parametrize("lock", ["requirements", "build-requirements"])
def test_locked_packages_have_wheels_for_the_images_python(lock: str, tmp_path: Path) -> None:
    """Resolve the lock files as the Dockerfile does, for its Python instead of the local one."""
    dockerfile = (ROOT / "Dockerfile").read_text()
    (version, *_) = re.findall(r"^FROM python:(\d+\.\d+)", dockerfile, re.MULTILINE)
    flags = "--require-hashes --only-binary :all:"
    assert f"{flags} -r {lock}.txt" in dockerfile
    platforms = [f"--platform=manylinux_2_{minor}_x86_64" for minor in (41, 28, 17, 12, 5)]
    resolved = run(
        *(sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed"),
        *(*flags.split(), f"--python-version={version}", *platforms, f"--target={tmp_path}"),
        *("-r", str(ROOT / "manifests" / "image" / f"{lock}.txt")),
        seconds=300,
    )
    assert resolved.returncode == 0, resolved.stderr


class TestPin:
    """`make pin`, with a stand-in for docker."""

    @pytest.fixture
    def pinned(self, tmp_path: Path) -> str:
        (tmp_path / "Dockerfile").write_text((ROOT / "Dockerfile").read_text())
        for digest in ("0" * 64, "a" * 64):
            self.pin(tmp_path, f"sha256:{digest}")
        return (tmp_path / "Dockerfile").read_text()

    def pin(self, directory: Path, output: str) -> int:
        docker = directory / "docker"
        docker.write_text(f"#!/bin/sh\necho {output}\n")
        docker.chmod(0o755)
        makefile = str(ROOT / "Makefile")
        return run("make", "-f", makefile, "pin", cwd=directory, path=str(directory)).returncode

    def test_replaces_the_digest_in_both_stages_and_nothing_else(self, pinned: str) -> None:
        bases = re.findall(r"^FROM (\S+)", pinned, re.MULTILINE)
        assert len(bases) == 2
        assert all(base.endswith(f"@sha256:{'a' * 64}") for base in bases)
        before = re.sub(r"@sha256:\w+", "", (ROOT / "Dockerfile").read_text())
        assert re.sub(r"@sha256:\w+", "", pinned) == before

    def test_changes_nothing_if_docker_prints_no_digest(self, tmp_path: Path) -> None:
        (tmp_path / "Dockerfile").write_text("FROM python:1\n")
        assert self.pin(tmp_path, "unknown") != 0
        assert (tmp_path / "Dockerfile").read_text() == "FROM python:1\n"


class TestWorkflows:
    @pytest.mark.skipif(
        (sys.platform, platform.machine()) != ("linux", "x86_64"), reason="actionlint has no wheel"
    )
    def test_have_no_findings_of_actionlint(self) -> None:
        """It checks syntax, expressions, the inputs of known actions, and their runtimes."""
        checker = str(Path(sys.executable).parent / "actionlint")
        found = run(checker, *map(str, WORKFLOWS))
        assert found.returncode == 0, found.stdout

    @pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
    def test_steps_run_targets_and_name_files_that_exist(self, path: Path) -> None:
        text = path.read_text()
        targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
        assert set(re.findall(r"\bmake ([a-z]+)", text)) <= targets
        for name in re.findall(r"\b(?:tests|manifests|\.github)/[\w./-]*\w", text):
            assert (ROOT / name).exists(), name

    @pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
    def test_jobs_may_only_read_unless_they_say_more_and_end_in_time(self, path: Path) -> None:
        workflow = yaml.safe_load(path.read_text())
        assert workflow["permissions"] == {"contents": "read"}
        for name, job in workflow["jobs"].items():
            assert "uses" in job or job["timeout-minutes"] <= 60, name

    def test_release_signs_without_a_key_and_only_there_gets_an_identity(self) -> None:
        for path in WORKFLOWS:
            jobs = yaml.safe_load(path.read_text())["jobs"]
            signing = {n for n, job in jobs.items() if "cosign sign" in json.dumps(job)}
            identities = {
                name for name, job in jobs.items() if "id-token" in job.get("permissions", {})
            }
            assert (
                signing == identities == ({"package", "image"} if path.stem == "release" else set())
            )
            assert "COSIGN_PASSWORD" not in path.read_text()
