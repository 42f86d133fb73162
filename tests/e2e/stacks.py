"""Real Envoy, the real sidecar and stand-in vLLM replicas, started and killed for each test.

Teardown kills the processes. A test that depends on an orderly exit stops the process itself.
Any suite that needs whole stacks imports these fixtures into its conftest.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from itertools import chain, count
from pathlib import Path

import aiohttp
import pytest
import trustme

from extproc.envoy import envoy_configuration
from extproc.lab.stack.envoy import Envoy, EnvoyAddresses, local_configuration
from extproc.lab.stack.sidecar import SidecarProcess
from extproc.lab.stack.stand_in_fleet import StandInFleet
from tests.e2e.cluster_scene import (
    CONFIG_MAP,
    NAMESPACE,
    ClusterOptions,
    ClusterScene,
    Deploy,
)
from tests.e2e.forked import ForkedApiServer, ForkedFileSidecar, ForkedFleet, ForkedSidecar
from tests.e2e.scene import Launch, Options, Scene

OTHER_ENVOYS = Path(__file__).parents[2] / ".envoys"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run tests with `every_envoy` on the installed Envoy and on those in EXTPROC_TEST_ENVOYS."""
    if "every_envoy" in metafunc.fixturenames:
        versions = ["installed", *os.environ.get("EXTPROC_TEST_ENVOYS", "").split()]
        metafunc.parametrize("every_envoy", versions, indirect=True)


@pytest.fixture
def every_envoy(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Select the Envoy version for this run of the test and return it."""
    version: str = request.param
    if version != "installed":
        binary = OTHER_ENVOYS / version / "envoy" / "_bin" / "envoy"
        monkeypatch.setenv("EXTPROC_ENVOY", str(binary))
    return version


@pytest.fixture
async def launch(tmp_path: Path) -> AsyncIterator[Launch]:
    """Return a function that starts a scene; every process stops when the test ends."""
    directories = chain([tmp_path], (tmp_path / f"scene-{number}" for number in count(2)))
    async with AsyncExitStack() as cleanup:

        async def start(options: Options | None = None) -> Scene:
            directory = next(directories)
            directory.mkdir(exist_ok=True)
            return await start_scene(options or Options(), directory, cleanup)

        yield start


@pytest.fixture
async def deploy(tmp_path: Path) -> AsyncIterator[Deploy]:
    """Return a function that starts a scene whose sidecar uses a stand-in Kubernetes API."""
    async with AsyncExitStack() as cleanup:

        async def start(options: ClusterOptions | None = None) -> ClusterScene:
            return await _deploy(options or ClusterOptions(), tmp_path, cleanup)

        yield start


async def start_scene(options: Options, directory: Path, cleanup: AsyncExitStack) -> Scene:
    """Start a scene in a directory; `cleanup` stops it."""
    replicas = await _fleet(options, directory, cleanup)
    listen = f"unix:{directory}/extproc.sock" if options.unix_socket else ""
    sidecar = ForkedFileSidecar(
        options.models(replicas.addresses),
        directory,
        listen=listen,
        arguments=options.sidecar_arguments,
    )
    cleanup.push_async_callback(sidecar.kill)
    await sidecar.start()
    envoy, session = await _envoy(options, sidecar, replicas, directory, cleanup)
    return Scene(envoy, sidecar, replicas, session)


async def _deploy(
    options: ClusterOptions, directory: Path, cleanup: AsyncExitStack
) -> ClusterScene:
    replicas = await _fleet(options, directory, cleanup)
    api = ForkedApiServer(directory, _certificate(directory) if options.tls else ())
    cleanup.push_async_callback(api.kill)
    await api.start()
    sidecar = ForkedSidecar(
        ["--models-configmap", f"{NAMESPACE}/{CONFIG_MAP}", "--kubeconfig", str(api.kubeconfig)],
        directory,
        arguments=options.sidecar_arguments,
    )
    cleanup.push_async_callback(sidecar.kill)
    envoy, session = await _envoy(options, sidecar, replicas, directory, cleanup)
    scene = ClusterScene(envoy, sidecar, replicas, session, api)
    await scene.configure(options.document())
    await api.apply(*(scene.pod(i) for i in range(options.ready_replicas)))
    if options.start_sidecar:
        await sidecar.start()
    return scene


def _certificate(directory: Path) -> list[str]:
    """Return the arguments for an API server with a new certificate."""
    authority = trustme.CA()
    bundle, certificate = directory / "ca.crt", directory / "server.pem"
    authority.cert_pem.write_to_path(bundle)
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(certificate)
    return ["--certificate", str(certificate), "--authority", str(bundle)]


async def _fleet(options: Options, directory: Path, cleanup: AsyncExitStack) -> StandInFleet:
    replicas = ForkedFleet(options.replicas, directory, options.replica_arguments)
    cleanup.push_async_callback(replicas.kill)
    await replicas.start()
    return replicas


async def _envoy(
    options: Options,
    sidecar: SidecarProcess,
    replicas: StandInFleet,
    directory: Path,
    cleanup: AsyncExitStack,
) -> tuple[Envoy, aiohttp.ClientSession]:
    """Start Envoy and return it with a client session."""
    addresses = EnvoyAddresses(sidecar.listen, [*replicas.addresses, *options.more_endpoints])
    config = local_configuration(envoy_configuration(options.config), addresses)
    options.change_config(config)
    envoy = Envoy(config, directory)
    cleanup.push_async_callback(envoy.kill)
    await envoy.start()
    # No connection limit: requests must not queue in the client.
    connector = aiohttp.TCPConnector(limit=0)
    session = await cleanup.enter_async_context(
        aiohttp.ClientSession(
            envoy.url, connector=connector, timeout=aiohttp.ClientTimeout(total=options.patience)
        )
    )
    return envoy, session
