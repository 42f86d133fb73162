"""Real vLLM engines, started once for all tests; Envoy and the sidecar, started for each test.

`make e2e-vllm` installs vLLM and runs these tests. They compare the sidecar's counts with the
engines' own, and assert no durations, because the engines share few cores.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from tempfile import mkdtemp

import aiohttp
import pytest
import pytest_asyncio

from extproc.envoy import envoy_configuration
from extproc.lab.real_vllm.engines import VLLM_PYTHON, RealFleet, RealVllm, build_model
from extproc.lab.real_vllm.rule_sidecar import RuleSidecar
from extproc.lab.stack.envoy import Envoy, EnvoyAddresses, local_configuration
from extproc.lab.stack.sidecar import FileSidecar
from tests.e2e.scene import MODEL, ext_proc_filter
from tests.e2e_vllm.scene import (
    ENGINES,
    LOADED_LATER,
    RESIDENT,
    Launch,
    Options,
    RecordFigure,
    VllmScene,
)

PATIENCE = aiohttp.ClientTimeout(total=120)

FIGURES = pytest.StashKey[list[tuple[str, str]]]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[FIGURES] = []


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Print the measurements that the tests reported."""
    figures = config.stash[FIGURES]
    if figures:
        terminalreporter.section("real vLLM")
        width = max(len(name) for name, _ in figures)
        for name, figure in figures:
            terminalreporter.line(f"{name:<{width}}  {figure}")


@pytest.fixture
def record_figure(pytestconfig: pytest.Config) -> RecordFigure:
    """Return a function that records a measurement, which is printed after all tests."""

    def add(name: str, figure: str) -> None:
        pytestconfig.stash[FIGURES].append((name, figure))

    return add


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the model and its adapters, and return their directory."""
    if not VLLM_PYTHON.exists():
        pytest.fail("vLLM is not installed: run `make e2e-vllm`")
    directory = tmp_path_factory.mktemp("tiny")
    build_model(directory, [RESIDENT, LOADED_LATER])
    return directory


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def engines(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[RealFleet]:
    """Start the engines, which are idle between tests."""
    directory = tmp_path_factory.mktemp("vllm")
    resident = {RESIDENT: tiny / RESIDENT}
    fleet = RealFleet(
        [RealVllm(i, tiny / "model", MODEL, directory, resident) for i in range(ENGINES)]
    )
    try:
        await fleet.start()
        yield fleet
    finally:
        await fleet.stop()


@pytest.fixture
async def launch(engines: RealFleet, tmp_path: Path) -> AsyncIterator[Launch]:
    """Return a function that starts a scene; its Envoy and sidecar stop with the test.

    A test may start several scenes.
    """
    async with AsyncExitStack() as cleanup:

        async def start(options: Options | None = None) -> VllmScene:
            return await start_scene(options or Options(), engines, tmp_path, cleanup)

        yield start


async def start_scene(
    options: Options, engines: RealFleet, parent: Path, cleanup: AsyncExitStack
) -> VllmScene:
    """Start a sidecar and an Envoy in front of engines; `cleanup` stops them."""
    directory = Path(mkdtemp(dir=parent))
    sidecar = _sidecar(options, engines.addresses, directory)
    cleanup.push_async_callback(sidecar.stop)
    await sidecar.start()
    addresses = EnvoyAddresses(sidecar.listen, engines.addresses)
    config = local_configuration(envoy_configuration(), addresses)
    # The engines use all cores, which also delays the sidecar.
    ext_proc_filter(config)["message_timeout"] = "20s"
    options.change_config(config)
    envoy = Envoy(config, directory)
    cleanup.push_async_callback(envoy.stop)
    await envoy.start()
    connector = aiohttp.TCPConnector(limit=0)
    session = await cleanup.enter_async_context(
        aiohttp.ClientSession(envoy.url, connector=connector, timeout=PATIENCE)
    )
    return VllmScene(envoy, sidecar, engines, session)


def _sidecar(options: Options, addresses: Sequence[str], directory: Path) -> FileSidecar:
    models = options.models(addresses)
    if options.published_rule:
        return RuleSidecar(options.published_rule, models, directory)
    return FileSidecar(models, directory)
