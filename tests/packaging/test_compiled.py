"""The compiled package of the image (`make compiled`). `make check` runs these tests."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

from extproc import __version__
from extproc.lab.stack.processes import until
from extproc.lab.stack.sidecar import compiled_environment
from tests.e2e.scene import Launch, Options, chat
from tests.extent import PATIENCE

ROOT = Path(__file__).parents[2]
BUILT = ".compiled-for-tests"
SECONDS = 3_000  # for a busy machine: alone it takes less than one minute

COMPILED = [
    *("adapters/observability/tallies", "adapters/observability/telemetry"),
    *("core/conversation/state_machine", "core/request/prompt", "core/routing/router"),
    *("core/strategies/prefix_cache", "core/strategies/prefix_hash"),
    *("edge/ext_proc/codec", "edge/ext_proc/service", "edge/grpc/connection"),
    *("edge/http2/connection", "edge/http2/receiver", "edge/http2/sender"),
]
_CONVERSATION = "tests/core/conversation/test_properties.py"
WITH_IT = [
    f"{_CONVERSATION}::test_body_ahead_of_the_reply_passes_whole_and_in_order",
    f"{_CONVERSATION}::test_duplex_body_is_streamed_back_once_and_in_order",
    f"{_CONVERSATION}::test_each_event_has_one_reply_of_its_kind_until_an_immediate_one",
    "tests/core/fleet/test_counted_prompts.py",
    "tests/core/fleet/test_engine_counters.py",
    "tests/core/fleet/test_engine_times.py",  # fleets of several kinds of GPU
    # Clients may send values of any type.
    "tests/core/fleet/test_load_report.py",
    "tests/core/request/test_routing_key.py",
    "tests/core/request/test_prompt.py",
    "tests/core/request/test_prompt_media.py",
    "tests/core/request/test_prompt_text.py",
    "tests/core/conversation/test_usage.py",
    "tests/edge/http2/test_properties.py",
    "tests/faults/test_message_fuzz.py",
]

HEADER = Path(sysconfig.get_path("include")) / "Python.h"
pytestmark = [
    pytest.mark.compiled,
    pytest.mark.skipif(
        not (any(map(shutil.which, ("cc", "gcc", "clang"))) and HEADER.exists()),
        reason="there is no C compiler here, or nothing that it could know Python by",
    ),
]


@pytest.fixture(scope="module")
def package() -> Path:
    """The compiled package, rebuilt if a source has changed.

    The C code is not optimized, because that takes most of the time of a build, and it has C
    assertions. `make test-compiled` tests the optimized package of the image.
    """
    # The environment that these tests run in is not to be touched meanwhile.
    command = ["make", "--silent", "--old-file=.venv/.installed", "compiled"]
    command += [f"COMPILED={BUILT}", "COMPILED_OPT_LEVEL=0"]
    built = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=SECONDS, check=False
    )
    assert built.returncode == 0, built.stdout + built.stderr
    return ROOT / BUILT / "lib"


@pytest.fixture(autouse=True)
def chosen(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let processes of the laboratory run the compiled package."""
    monkeypatch.setenv("EXTPROC_COMPILED", str(package))


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python with the compiled package."""
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env={**os.environ, **compiled_environment()},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )


def test_modules_of_the_request_path_are_compiled(package: Path) -> None:
    for module in COMPILED:
        assert package.joinpath(f"extproc/{module}{EXTENSION_SUFFIXES[0]}").exists(), module
    assert not list(ROOT.glob("extproc/**/*.so")), "the checkout itself stays as it is"


def test_version_says_compiled() -> None:
    assert run("-m", "extproc", "--version").stdout == f"extproc {__version__} (compiled)\n"


def test_passes_the_property_tests() -> None:
    found = run("-m", "pytest", "-n0", "-q", "-p", "no:cacheprovider", *WITH_IT)
    assert found.returncode == 0, found.stdout[-5_000:]


async def test_routes_behind_envoy(launch: Launch) -> None:
    options = Options(strategy="PrefixCache", replica_arguments=("--time-scale", "50"))
    scene = await launch(options)
    replies = [await scene.send(chat(f"I am user {turn % 4}")) for turn in range(12)]
    assert [reply.status for reply in replies] == [200] * 12
    assert [one.replica for one in replies[:4]] == [one.replica for one in replies[4:8]]
    assert (await scene.send(b"{")).status == 400
    logged = scene.sidecar.stderr.read_text
    await until(lambda: "compiled=True" in logged(), PATIENCE, "the log to say what runs")
