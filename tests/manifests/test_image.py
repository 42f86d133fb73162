"""The image: its Dockerfile, and the lock files that it installs from."""

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
# Those that the image has. It needs no grpcio, because its transport is `fast`.
EXTRAS = ("kubernetes", "otel", "shared", "uvloop")


def instructions() -> list[tuple[str, str]]:
    """Return the Dockerfile's instructions with their arguments, continued lines joined."""
    text = re.sub(r"^#.*\n", "", DOCKERFILE.read_text(), flags=re.MULTILINE)
    lines = text.replace("\\\n", " ").splitlines()
    return [(line.split()[0], line.partition(" ")[2].strip()) for line in lines if line.strip()]


def labels() -> dict[str, str]:
    """Return the labels of the image by the last part of their names."""
    (text,) = [arguments for name, arguments in instructions() if name == "LABEL"]
    return dict(re.findall(r'org\.opencontainers\.image\.([\w.]+)="([^"]*)"', text))


def required(what: str) -> list[Requirement]:
    """Return the requirements in pyproject.toml."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    compiling = project["tool"]["hatch"]["build"]["targets"]["wheel"]["hooks"]["mypyc"]
    extras = project["project"]["optional-dependencies"]
    wanted = {
        "runtime": project["project"]["dependencies"]
        + [line for one in EXTRAS for line in extras[one]],
        "build": project["build-system"]["requires"] + compiling["dependencies"],
    }
    return [Requirement(line) for line in wanted[what]]


def pinned(what: str) -> dict[str, Version]:
    """Return the packages of a lock file with their versions."""
    text = LOCKS[what].read_text()
    found = re.findall(r"^([\w.-]+)==(\S+) \\$", text, flags=re.MULTILINE)
    return {canonicalize_name(name): Version(version) for name, version in found}


def test_dockerfile_has_no_lint_findings() -> None:
    hadolint = Path(sys.executable).parent / "hadolint"
    command = [str(hadolint), "--failure-threshold", "style", str(DOCKERFILE)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (result.returncode, result.stdout) == (0, ""), result.stdout


def test_copied_paths_exist_and_are_not_ignored() -> None:
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


def test_image_starts_the_sidecar_as_an_unprivileged_user() -> None:
    last = dict(instructions())
    assert last["ENTRYPOINT"] == '["extproc"]'
    assert last["CMD"] == '["serve"]'
    user, _, group = last["USER"].partition(":")
    assert user.isdecimal()
    assert group.isdecimal()
    assert int(user) > 0
    security = built("base").one("Deployment")["spec"]["template"]["spec"]["securityContext"]
    assert (security["runAsUser"], security["runAsGroup"]) == (int(user), int(group))


def test_base_image_is_pinned_and_the_same_in_both_stages() -> None:
    bases = [arguments.split()[0] for name, arguments in instructions() if name == "FROM"]
    assert len(bases) == 2
    assert len(set(bases)) == 1
    assert re.fullmatch(r"python:3\.13\.\d+-slim-\w+(@sha256:[0-9a-f]{64})?", bases[0])
    assert labels()["base.name"] == bases[0].partition("@")[0]


def test_labels_have_the_version() -> None:
    assert labels()["version"] == __version__
    assert labels().keys() >= {"title", "description", "licenses"}


@pytest.mark.parametrize("what", sorted(LOCKS))
class TestLockFile:
    def test_has_every_requirement_within_its_range(self, what: str) -> None:
        locked = pinned(what)
        for requirement in required(what):
            name = canonicalize_name(requirement.name)
            assert name in locked
            assert requirement.specifier.contains(locked[name])
            # The extra of redis has the name of its only package.
            assert requirement.extras <= set(locked)

    def test_has_a_hash_for_every_package(self, what: str) -> None:
        text = LOCKS[what].read_text()
        entries = re.split(r"^(?=[\w.-]+==)", text, flags=re.MULTILINE)[1:]
        assert len(entries) == len(pinned(what))
        assert all("--hash=sha256:" in entry for entry in entries)

    def test_names_no_package_index(self, what: str) -> None:
        text = LOCKS[what].read_text()
        assert not re.search(r"https?:|file:|--index|--find-links|--extra|@ |/home|/opt|/tmp", text)


def test_runtime_packages_are_locked_with_the_extras_of_the_image() -> None:
    target = (ROOT / "Makefile").read_text().partition("\nlock:")[2].partition("\n\n")[0]
    (line,) = re.findall(r"^.* pyproject\.toml .*$", target, re.MULTILINE)
    assert tuple(re.findall(r"--extra (\w+)", line)) == EXTRAS


def test_build_requirements_equal_those_of_pyproject() -> None:
    lines = (MANIFESTS / "image" / "build-requirements.in").read_text().splitlines()
    listed = [Requirement(line) for line in lines if not line.startswith("#")]
    assert listed == required("build")


def test_manifests_run_this_version() -> None:
    images = {
        container["image"]
        for path in ("base", "standalone", "existing-envoy")
        for _, template in built(path).pods()
        for container in containers(template)
        if container["name"] == "extproc"
    }
    assert images == {f"extproc:{__version__}"}
