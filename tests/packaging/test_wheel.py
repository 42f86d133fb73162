"""The wheel and the image's package, built and installed away from any checkout."""

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
from extproc.lab.stack.stand_in_fleet import StandInFleet
from tests.extent import PATIENCE
from tests.packaging.image import ROOT, copy_builder_files

NOT_OF_THE_DEMO = "grpc grpc_health kubernetes opentelemetry scipy"
"""Packages that the extra `demo` does not install."""

ROOMS_OF_COMMANDS = {
    *("demo", "engine", "load", "measures", "oracle", "published_rules", "simulation"),
    *("stack", "stand_ins", "workloads"),
}
"""Packages of the laboratory that `demo`, `load`, `run` and `simulate` need."""

ROOMS_OF_REPOSITORY = {"api_server", "bench", "pages", "real_vllm", "tables"}
"""Packages of the laboratory that only this repository's tests, pages and benchmarks need."""

IMPORT_LABORATORY = """
import pkgutil, extproc.lab
for module in pkgutil.walk_packages(extproc.lab.__path__, "extproc.lab."):
    __import__(module.name)
    print(module.name)
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel of this checkout."""
    return build(ROOT, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory that the wheel is installed in, with the command in its `bin`."""
    return install(wheel, tmp_path_factory.mktemp("installed"))


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package as the image has it, but not compiled, installed in a directory."""
    sources = tmp_path_factory.mktemp("builder")
    copy_builder_files(sources)
    wheel = build(sources, tmp_path_factory.mktemp("image-wheel"))
    return install(wheel, tmp_path_factory.mktemp("image"))


@pytest.fixture(autouse=True)
def _away_from_the_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("EXTPROC_COMPILED", raising=False)


@pytest.fixture
def command(installed: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The installed command, which imports the installed package."""
    monkeypatch.setenv("PYTHONPATH", str(installed))
    return str(installed / "bin" / "extproc")


@pytest.fixture
def demo_command(command: str, installed: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The installed command without the packages that the extra `demo` does not install."""
    without = ROOT / "tests" / "without"
    monkeypatch.setenv("PYTHONPATH", f"{without}{os.pathsep}{installed}")
    monkeypatch.setenv("EXTPROC_TEST_HIDDEN", NOT_OF_THE_DEMO)
    return command


@pytest.fixture
def image_command(image: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The command of the image, which imports the image's package."""
    monkeypatch.setenv("PYTHONPATH", str(image))
    return str(image / "bin" / "extproc")


def build(sources: Path, directory: Path) -> Path:
    """Build a wheel and return its path."""
    pip("wheel", "--no-build-isolation", "--wheel-dir", str(directory), str(sources))
    (path,) = directory.glob("*.whl")
    return path


def install(wheel: Path, target: Path) -> Path:
    """Install a wheel without its dependencies, which the test environment has."""
    pip("install", "--target", str(target), str(wheel))
    return target


def pip(command: str, *arguments: str) -> None:
    quiet = ["--quiet", "--disable-pip-version-check", "--no-deps", "--no-index"]
    found = run(sys.executable, "-m", "pip", command, *quiet, *arguments, seconds=300)
    assert found.returncode == 0, found.stdout + found.stderr


def run(*command: str, seconds: float = 2 * PATIENCE) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)


def output(*command: str) -> str:
    found = run(*command)
    assert found.returncode == 0, found.stderr
    return found.stdout


def rooms(package: Path) -> set[str]:
    """Return the names of the laboratory's packages in an installed package."""
    return {path.parent.name for path in package.glob("extproc/lab/*/__init__.py")}


class TestWheel:
    def test_has_the_name_of_the_distribution(self, wheel: Path) -> None:
        assert wheel.name == f"extproc_router-{__version__}-py3-none-any.whl"

    def test_contains_every_envoy_configuration(self, wheel: Path) -> None:
        with zipfile.ZipFile(wheel) as archive:
            for path in envoy_configurations():
                assert archive.read(f"extproc/envoy/{path.name}") == path.read_bytes()

    def test_contains_the_files_of_the_status_page(self, installed: Path) -> None:
        names = {path.name for path in (ROOT / "extproc" / "edge" / "status").iterdir()}
        assert {"index.html", "style.css", "main.js", "icon.svg"} < names
        shipped = {path.name for path in (installed / "extproc" / "edge" / "status").iterdir()}
        assert shipped - {"__pycache__"} == names - {"__pycache__"}

    def test_contains_the_rooms_of_the_commands_only(self, installed: Path) -> None:
        assert rooms(installed) == ROOMS_OF_COMMANDS

    def test_lists_cover_every_room_of_the_laboratory(self) -> None:
        assert rooms(ROOT) == ROOMS_OF_COMMANDS | ROOMS_OF_REPOSITORY


@pytest.mark.usefixtures("command")
class TestInstalledPackage:
    def test_finds_its_own_configurations(self, installed: Path) -> None:
        code = (
            "from extproc.envoy import envoy_configuration as one; print(one('fail-closed.yaml'))"
        )
        found = output(sys.executable, "-c", code)
        assert Path(found.strip()) == installed / "extproc" / "envoy" / "fail-closed.yaml"

    def test_imports_every_module_of_its_laboratory(self) -> None:
        imported = output(sys.executable, "-c", IMPORT_LABORATORY).split()
        assert {name.split(".")[2] for name in imported} >= ROOMS_OF_COMMANDS


class TestInstalledCommand:
    def test_prints_its_version(self, command: str) -> None:
        assert output(command, "--version") == f"extproc {__version__}\n"

    async def test_demo_prints_its_tables_and_writes_its_report(
        self, demo_command: str, tmp_path: Path
    ) -> None:
        report = tmp_path / "report.html"
        size = ("--users", "6", "--turns", "2", "--report", str(report))
        process = Process("demo", [demo_command, "demo", *size], tmp_path)
        process.spawn()
        try:
            assert await process.wait(20 * PATIENCE) == 0, process.error_output()
        finally:
            await process.stop()
        printed = process.stdout.read_text()
        for strategy in ("RoundRobin", "LeastLoad", "PrefixHash", "PrefixCache"):
            assert strategy in printed
        for text in ("TTFT", "Verdict: ", '"reason": "prefix"', '"reason": "cached"'):
            assert text in printed
        lines = [line for line in printed.splitlines() if str(report) not in line]
        assert [line for line in lines if len(line) > 80] == []
        assert f"Report with charts: {report}" in printed
        assert report.read_text().count("<svg") == 4

    async def test_run_serves_the_requests_that_it_prints(
        self, demo_command: str, tmp_path: Path
    ) -> None:
        process = Process("run", [demo_command, "run"], tmp_path)
        process.spawn()
        try:
            await until(lambda: "Ctrl-C" in process.stdout.read_text(), PATIENCE, "the stack")
            printed = process.stdout.read_text()
            found = re.search(r"curl -N (\S+) -d '(.*)'", printed)
            assert found
            gets = re.findall(r"^curl (http\S+)$", printed, re.MULTILINE)
            assert len(gets) == 3
            async with aiohttp.ClientSession() as session:
                async with session.post(found[1], json=json.loads(found[2])) as response:
                    assert response.status == 200
                    assert (await response.read()).endswith(b"data: [DONE]\n\n")
                for url in gets:
                    async with session.get(url) as response:
                        assert response.status == 200
        finally:
            await process.stop()
        assert process.returncode() == 0

    def test_simulate_prints_a_run(self, command: str) -> None:
        arguments = ["--workload", "saas", "--sessions", "5", "--strategy", "PrefixHash"]
        assert "Mean TTFT" in output(command, "simulate", *arguments)

    async def test_load_measures_a_server(self, command: str, tmp_path: Path) -> None:
        fleet = StandInFleet(1, tmp_path, ["--time-scale", "50"])
        await fleet.start()
        try:
            url = f"http://{fleet.addresses[0]}"
            arguments = ["--url", url, "--model", "llama", "--workload", "saas", "--sessions", "2"]
            process = Process("load", [command, "load", *arguments], tmp_path)
            process.spawn()
            assert await process.wait(5 * PATIENCE) == 0, process.error_output()
        finally:
            await fleet.stop()
        assert "Mean TTFT" in process.stdout.read_text()

    def test_names_the_extra_if_a_library_is_missing(self, installed: Path) -> None:
        # An isolated Python that sees the package and nothing that it depends on.
        code = f"import sys; sys.path.insert(0, {str(installed)!r})\n"
        code += "from extproc.cli import main; sys.exit(main(['demo']))"
        found = run(sys.executable, "-I", "-S", "-c", code)
        assert found.returncode == 2
        assert "is not installed: this command needs extproc-router[demo]" in found.stderr
        assert len(found.stderr.splitlines()) == 1


class TestImage:
    def test_leaves_out_the_laboratory(self, image: Path) -> None:
        assert (image / "extproc" / "app.py").exists()
        assert not (image / "extproc" / "lab").exists()

    def test_has_the_command(self, image_command: str) -> None:
        assert output(image_command, "--version") == f"extproc {__version__}\n"

    @pytest.mark.parametrize("name", ["demo", "load", "run", "simulate"])
    def test_refuses_a_command_of_the_laboratory_in_one_line(
        self, name: str, image_command: str
    ) -> None:
        extra = "demo" if name in ("demo", "run") else "lab"
        found = run(image_command, name, "--help")
        assert (found.returncode, found.stdout) == (2, "")
        assert found.stderr == (
            f"extproc {name}: this installation does not include the command: "
            f"pip install 'extproc-router[{extra}]'\n"
        )
