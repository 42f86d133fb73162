"""The image: clean by its linter, and built from locks that fit pyproject.toml."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from fnmatch import fnmatch
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from extproc import __version__
from tests.manifests.builds import MANIFESTS, ROOT, built, containers

DOCKERFILE = ROOT / "Dockerfile"
LOCKS = {
    "runtime": MANIFESTS / "image" / "requirements.txt",
    "build": MANIFESTS / "image" / "build-requirements.txt",
}


def instructions() -> list[tuple[str, str]]:
    """The Dockerfile's instructions and what they say, continued lines joined."""
    text = re.sub(r"^#.*\n", "", DOCKERFILE.read_text(), flags=re.MULTILINE)
    lines = text.replace("\\\n", " ").splitlines()
    return [(line.split()[0], line.partition(" ")[2].strip()) for line in lines if line.strip()]


def required(what: str) -> list[Requirement]:
    """What pyproject.toml asks for."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    compiling = project["tool"]["hatch"]["build"]["targets"]["wheel"]["hooks"]["mypyc"]
    wanted = {
        "runtime": project["project"]["dependencies"],
        "build": project["build-system"]["requires"] + compiling["dependencies"],
    }
    return [Requirement(line) for line in wanted[what]]


def pinned(what: str) -> dict[str, Version]:
    """What a lock installs."""
    text = LOCKS[what].read_text()
    found = re.findall(r"^([\w.-]+)==(\S+) \\$", text, flags=re.MULTILINE)
    return {canonicalize_name(name): Version(version) for name, version in found}


def test_the_linter_has_nothing_to_say() -> None:
    hadolint = Path(sys.executable).parent / "hadolint"
    command = [str(hadolint), "--failure-threshold", "style", str(DOCKERFILE)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (result.returncode, result.stdout) == (0, ""), result.stdout


def test_what_is_copied_exists_and_reaches_the_builder() -> None:
    ignore = (ROOT / ".dockerignore").read_text().splitlines()
    allowed = [line[1:] for line in ignore if line.startswith("!")]
    copied = [
        source
        for name, arguments in instructions()
        if name == "COPY" and "--from" not in arguments
        for source in arguments.split()[:-1]
    ]
    assert copied
    for source in copied:
        assert (ROOT / source).exists(), source
        assert any(fnmatch(source, f"{pattern}*") for pattern in allowed), source
    assert "*" in ignore


def test_the_image_starts_the_sidecar_as_nobody_in_particular() -> None:
    last = dict(instructions())
    assert last["ENTRYPOINT"] == '["extproc"]'
    assert last["CMD"] == '["serve"]'
    user, _, group = last["USER"].partition(":")
    assert user.isdecimal()
    assert group.isdecimal()
    assert int(user) > 0
    security = built("base").one("Deployment")["spec"]["template"]["spec"]["securityContext"]
    assert (security["runAsUser"], security["runAsGroup"]) == (int(user), int(group))


def test_the_base_is_pinned_and_the_same_in_both_stages() -> None:
    bases = [arguments.split()[0] for name, arguments in instructions() if name == "FROM"]
    assert len(bases) == 2
    assert len(set(bases)) == 1
    assert re.fullmatch(r"python:3\.13\.\d+-slim-\w+", bases[0])


@pytest.mark.parametrize("what", sorted(LOCKS))
class TestTheLock:
    def test_has_all_that_is_required_within_range(self, what: str) -> None:
        locked = pinned(what)
        for requirement in required(what):
            name = canonicalize_name(requirement.name)
            assert name in locked
            assert requirement.specifier.contains(locked[name])

    def test_has_hashes_for_everything(self, what: str) -> None:
        text = LOCKS[what].read_text()
        entries = re.split(r"^(?=[\w.-]+==)", text, flags=re.MULTILINE)[1:]
        assert len(entries) == len(pinned(what))
        assert all("--hash=sha256:" in entry for entry in entries)

    def test_names_no_place_to_get_things_from(self, what: str) -> None:
        text = LOCKS[what].read_text()
        assert not re.search(r"https?:|file:|--index|--find-links|--extra|@ |/home|/opt|/tmp", text)


def test_what_is_locked_for_building_is_what_pyproject_asks_for() -> None:
    lines = (MANIFESTS / "image" / "build-requirements.in").read_text().splitlines()
    listed = [Requirement(line) for line in lines if not line.startswith("#")]
    assert listed == required("build")


def test_the_manifests_run_this_version() -> None:
    images = {
        container["image"]
        for path in ("base", "standalone", "existing-envoy")
        for _, template in built(path).pods()
        for container in containers(template)
        if container["name"] == "extproc"
    }
    assert images == {f"extproc:{__version__}"}
