"""`extproc serve` without the extras for gRPC, Kubernetes, Redis and OpenTelemetry."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import grpc
import pytest

from extproc.edge.grpc.health import SERVICE
from extproc.lab.stack.processes import until
from extproc.lab.stack.sidecar import FileSidecar, SidecarProcess
from tests.core.builders import TWO_ADDRESSES
from tests.edge.envoy import Reply, chat_request, request_body, request_headers
from tests.extent import PATIENCE

STATIC = {"models": [{"name": "llama", "endpoints": list(TWO_ADDRESSES)}]}
SERVICE_OF_KUBERNETES = {"namespace": "inference", "name": "vllm", "port": "http"}
BY_SERVICE = {"models": [{"name": "llama", "service": SERVICE_OF_KUBERNETES}]}
NO_CLIENT = "the Kubernetes client is not installed: pip install 'extproc-router[kubernetes]'"

Start = Callable[..., SidecarProcess]


@pytest.fixture(autouse=True)
def _hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).with_name("without")))
    monkeypatch.setenv(
        "EXTPROC_TEST_HIDDEN", "grpc grpc_health h2 kubernetes redis hiredis opentelemetry"
    )


@pytest.fixture
async def sidecar(tmp_path: Path) -> AsyncIterator[FileSidecar]:
    """A running sidecar with a static list of endpoints."""
    sidecar = FileSidecar(STATIC, tmp_path)
    await sidecar.start()
    yield sidecar
    await sidecar.kill()


async def refused(sidecar: SidecarProcess) -> str:
    """Return the line with which the process ends, with exit code 2."""
    sidecar.spawn()
    assert await sidecar.wait(20) == 2
    (line,) = sidecar.error_output().splitlines()
    return line


async def test_static_endpoints_are_served(sidecar: FileSidecar) -> None:
    async with grpc.aio.insecure_channel(sidecar.listen) as channel:
        call = channel.stream_stream(f"/{SERVICE}/Process")()
        await call.write(request_headers())
        await call.read()
        await call.write(request_body(chat_request("llama", "hello")))
        answer = await call.read()
        call.cancel()
    assert Reply(answer).headers["x-target-endpoint"] in TWO_ADDRESSES


async def test_reload_that_needs_kubernetes_is_refused_and_the_last_good_document_stays(
    sidecar: FileSidecar,
) -> None:
    sidecar.write_models(BY_SERVICE)
    await until(lambda: NO_CLIENT in sidecar.error_output(), PATIENCE, "the document to be refused")
    assert "Traceback" not in sidecar.error_output()
    assert await sidecar.is_ready()
    endpoints = (await sidecar.state())["llama"]["endpoints"]
    assert {endpoint["address"] for endpoint in endpoints} == set(TWO_ADDRESSES)


async def test_document_that_needs_kubernetes_is_refused_in_one_line(tmp_path: Path) -> None:
    sidecar = FileSidecar(BY_SERVICE, tmp_path)
    assert await refused(sidecar) == f"{sidecar.models}: service inference/vllm: {NO_CLIENT}"


async def test_config_map_is_refused_in_one_line(tmp_path: Path) -> None:
    sidecar = SidecarProcess(["--models-configmap", "inference/models"], tmp_path)
    assert await refused(sidecar) == f"ConfigMap inference/models: {NO_CLIENT}"


async def test_grpcio_transport_is_refused_in_one_line(tmp_path: Path) -> None:
    sidecar = FileSidecar(STATIC, tmp_path, arguments=["--transport", "grpcio"])
    assert await refused(sidecar) == (
        "extproc serve: --transport grpcio needs grpcio: pip install 'extproc-router[grpcio]'"
    )


async def test_shared_state_is_refused_in_one_line(tmp_path: Path) -> None:
    sidecar = FileSidecar(STATIC, tmp_path, arguments=["--shared-state", "redis://valkey"])
    assert await refused(sidecar) == (
        "extproc serve: --shared-state needs redis: pip install 'extproc-router[shared]'"
    )


@pytest.mark.parametrize("url", ["grpc://collector", "https://collector"])
async def test_traces_are_refused_in_one_line(url: str, tmp_path: Path) -> None:
    sidecar = FileSidecar(STATIC, tmp_path, arguments=["--otlp", url])
    assert await refused(sidecar) == (
        "extproc serve: --otlp needs OpenTelemetry: pip install 'extproc-router[otel]'"
    )
