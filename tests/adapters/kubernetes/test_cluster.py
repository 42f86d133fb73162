from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from extproc.adapters.endpoints.screening import RejectionReason
from extproc.adapters.kubernetes.cluster import Cluster
from extproc.adapters.kubernetes.errors import KubernetesError
from extproc.lab.api_server.process import StandInApiServer


async def test_connects_once(server: StandInApiServer) -> None:
    cluster = Cluster(server.kubeconfig, allow_loopback=False)
    first, second = await asyncio.gather(cluster.connection(), cluster.connection())
    assert first is second
    assert await cluster.connection() is first
    await cluster.close()


@pytest.mark.parametrize("allow_loopback", [True, False])
async def test_screen_rejects_the_api_server(
    allow_loopback: bool, server: StandInApiServer
) -> None:
    cluster = Cluster(server.kubeconfig, allow_loopback=allow_loopback)
    screen = (await cluster.connection()).screen
    port = int(server.url.rpartition(":")[2])
    refused = RejectionReason.API_SERVER if allow_loopback else RejectionReason.LOOPBACK
    assert screen.rejection("127.0.0.1", port) is refused
    assert (screen.rejection("127.0.0.1", port + 1) is None) == allow_loopback
    await cluster.close()


async def test_finds_credentials_that_appear_later(
    server: StandInApiServer, tmp_path: Path
) -> None:
    kubeconfig = tmp_path / "kubeconfig.yaml"
    cluster = Cluster(kubeconfig, allow_loopback=False)
    with pytest.raises(KubernetesError):
        await cluster.connection()
    kubeconfig.write_bytes(server.kubeconfig.read_bytes())
    assert await (await cluster.connection()).api.get("/api/v1/pods", {})
    await cluster.close()


async def test_close_works_without_a_connection() -> None:
    await Cluster(None, allow_loopback=False).close()


def test_client_is_not_imported_before_it_is_needed() -> None:
    """The import takes a third of a second and 20 MB."""
    program = "import sys, extproc.cli; print(*(m for m in sys.modules if 'kubernetes.aio' in m))"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (run.returncode, run.stdout, run.stderr) == (0, "\n", "")
