"""Start and stop of `extproc serve`, as a process with a stand-in for Kubernetes."""

from __future__ import annotations

import asyncio
import signal
import socket
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from extproc.adapters.dns.lookup import NameServer
from extproc.app import Sidecar
from extproc.edge.grpc.health import SERVICE
from extproc.lab.api_server.builders import config_map, endpoint_slice
from extproc.lab.api_server.process import StandInApiServer
from extproc.lab.stack.processes import until
from extproc.lab.stack.sidecar import SidecarProcess
from extproc.settings import Settings
from tests.e2e.forked import ForkedApiServer, ForkedSidecar
from tests.edge.envoy import Reply, request_headers
from tests.extent import PATIENCE, limit

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING

READY = {"ready": True, "serving": True, "terminating": False}
STATIC = "models:\n- name: llama\n  endpoints: [10.0.0.1:8000]\n"

SOON = PATIENCE
"""Seconds: some waits between attempts, and the start of the process."""

_numbers = count()


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandInApiServer]:
    server = ForkedApiServer(tmp_path_factory.mktemp("api-server"))
    asyncio.run(server.start())
    yield server
    asyncio.run(server.stop())


@pytest.fixture
async def api(running: StandInApiServer) -> StandInApiServer:
    """A stand-in API server without faults."""
    await running.reset()
    return running


class Scene:
    """A namespace with the configuration of a sidecar."""

    def __init__(self, api: StandInApiServer, directory: Path) -> None:
        self.api = api
        self.directory = directory
        self.namespace = f"app-{next(_numbers)}"
        self.configure_by("--models-configmap", f"{self.namespace}/models")
        service = f"{{namespace: {self.namespace}, name: vllm, port: http}}"
        self.by_service = f"models: [{{name: llama, service: {service}}}]"

    def configure_by(self, flag: str, value: object) -> None:
        """Set the source of the models document."""
        configured = [flag, str(value), "--kubeconfig", str(self.api.kubeconfig)]
        self.sidecar = ForkedSidecar(configured, self.directory)

    async def configure(self, document: str) -> None:
        await self.api.apply(config_map(self.namespace, "models", {"models.yaml": document}))

    async def add_pod(self, name: str, address: str) -> None:
        endpoints = [(address, name, READY)]
        await self.api.apply(endpoint_slice("vllm", self.namespace, name, endpoints))

    async def is_not_ready(self, why: str) -> None:
        """Wait until the sidecar is not ready for this reason."""

        async def says_so() -> bool:
            try:
                status, text = await self.sidecar.get("/readyz")
            except aiohttp.ClientError:
                return False
            return status == 503 and why in text

        await until(says_so, SOON, f"'{why}' on /readyz")
        assert await self.sidecar.get("/healthz") == (200, "ok\n")

    async def is_ready(self) -> None:
        await until(self.sidecar.is_ready, SOON, "the sidecar to be ready")

    async def lets_envoy_in(self) -> bool:
        """Return True if gRPC health reports that the sidecar serves streams."""
        async with grpc.aio.insecure_channel(self.sidecar.listen) as channel:
            stub = health_pb2_grpc.HealthStub(channel)
            healths = {
                name: (await stub.Check(health_pb2.HealthCheckRequest(service=name))).status
                for name in ("liveness", "readiness", SERVICE, "")
            }
            call = channel.stream_stream(f"/{SERVICE}/Process")()
            answer = b""
            with suppress(grpc.aio.AioRpcError):
                await call.write(request_headers("/nowhere"))
                answer = await call.read()
                await call.done_writing()
            let_in = await call.code() is grpc.StatusCode.OK
            if let_in:
                assert Reply(answer).error == (404, "unknown_path")
        assert healths.pop("liveness") == SERVING
        assert set(healths.values()) == {SERVING if let_in else NOT_SERVING}
        return let_in

    async def endpoints(self) -> dict[str, str]:
        """Return the addresses of the endpoints by name."""
        (model,) = (await self.sidecar.state()).values()
        return {endpoint["name"]: endpoint["address"] for endpoint in model["endpoints"]}

    async def events(self) -> list[tuple[str, str, str]]:
        found = await self.api.objects("events", self.namespace)
        return [(one["type"], one["reason"], one["message"]) for one in found]

    async def ends(self) -> tuple[int, list[str]]:
        """Return exit code and stderr of a sidecar that stops by itself."""
        code = await self.sidecar.wait(SOON)
        return code, said(self.sidecar)

    async def ends_on_sigterm(self) -> None:
        """Send SIGTERM and expect a clean exit within a short time."""
        began = time.monotonic()
        self.sidecar.signal(signal.SIGTERM)
        assert await self.sidecar.wait(SOON) == 0
        assert time.monotonic() - began < limit(2)
        lines = said(self.sidecar)
        assert all(" INFO " in line or " WARNING " in line for line in lines)
        assert lines[-1].endswith("INFO stopped")


def said(sidecar: SidecarProcess) -> list[str]:
    """Return stderr, which must have no traceback."""
    text = sidecar.stderr.read_text()
    for sign in ("Traceback", "Unclosed", "destroyed", "never retrieved", "never awaited"):
        assert sign not in text
    return text.splitlines()


@pytest.fixture
async def scene(api: StandInApiServer, tmp_path: Path) -> AsyncIterator[Scene]:
    scene = Scene(api, tmp_path)
    yield scene
    await scene.sidecar.kill()


class TestStart:
    async def test_ends_when_all_endpoints_are_known(self, scene: Scene) -> None:
        """Until then streams end with UNAVAILABLE, so that Envoy uses its fallback."""
        await scene.api.faults(forbidden=["endpointslices"])
        scene.sidecar.spawn()
        await scene.is_not_ready(f"ConfigMap {scene.namespace}/models: not found")
        assert not await scene.lets_envoy_in()

        await scene.configure(scene.by_service)
        await scene.is_not_ready(f"service {scene.namespace}/vllm: 403 ")
        assert not await scene.lets_envoy_in()

        await scene.add_pod("pod-1", "10.0.0.1")
        await scene.api.faults(forbidden=[])
        await scene.is_ready()
        assert await scene.lets_envoy_in()
        assert await scene.endpoints() == {f"{scene.namespace}/pod-1": "10.0.0.1:8000"}

        await scene.add_pod("pod-2", "10.0.0.2")

        async def has_both() -> bool:
            return len(await scene.endpoints()) == 2

        await until(has_both, SOON, "the second endpoint")
        await scene.ends_on_sigterm()

    async def test_waits_for_the_api_server(self, scene: Scene) -> None:
        await scene.configure(STATIC)
        await scene.api.faults(listening=False)
        scene.sidecar.spawn()
        await scene.is_not_ready(f"ConfigMap {scene.namespace}/models: ")
        assert not await scene.lets_envoy_in()
        await scene.api.faults(listening=True)
        await scene.is_ready()
        await scene.ends_on_sigterm()

    async def test_accepts_a_service_without_endpoints(self, scene: Scene) -> None:
        await scene.configure(scene.by_service)
        scene.sidecar.spawn()
        await scene.is_ready()
        assert await scene.endpoints() == {}

    async def test_fails_with_a_bad_first_document(self, scene: Scene) -> None:
        await scene.configure(STATIC.replace("name", "nam") + "- {name: a}\n")
        scene.sidecar.spawn()
        code, (*logged, last) = await scene.ends()
        assert code == 2
        problem = "models[0].name: is required"
        assert last == f"ConfigMap {scene.namespace}/models: {problem} (and 2 more)"
        assert [line.split()[1] for line in logged] == ["ERROR"]
        ((kind, reason, message),) = await scene.events()
        assert (kind, reason) == ("Warning", "ModelsRefused")
        assert message.startswith(problem)

    @pytest.mark.parametrize("kubeconfig", ["", "/nonexistent", "/dev/null"])
    async def test_fails_without_credentials(
        self, kubeconfig: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("KUBECONFIG", "/nonexistent/default")
        monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
        given = ["--kubeconfig", kubeconfig] if kubeconfig else []
        # Not forked: the client of Kubernetes reads $KUBECONFIG when it is imported.
        sidecar = SidecarProcess(["--models-configmap", "ns/models", *given], tmp_path)
        sidecar.spawn()
        assert await sidecar.wait(SOON) == 2
        (line,) = said(sidecar)
        place = kubeconfig or "/nonexistent/default"
        says = f"ConfigMap ns/models: no credentials for Kubernetes in {place}: "
        assert line.startswith(says)

    async def test_names_the_host_that_it_waits_for(self, tmp_path: Path) -> None:
        (tmp_path / "models.yaml").write_text("models: [{name: a, endpoints: [vllm.example:80]}]")
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as silent:
            silent.bind(("127.0.0.1", 0))
            sidecar = Sidecar(
                Settings(
                    listen=f"unix:{tmp_path}/listen.sock",
                    admin=f"unix:{tmp_path}/admin.sock",
                    models=tmp_path / "models.yaml",
                    grace=0,
                    dns_server=NameServer("127.0.0.1", silent.getsockname()[1]),
                )
            )
            starting = asyncio.create_task(sidecar.start())
            await until(lambda: sidecar._discovery.why_not_synced() is not None, SOON, "a lookup")
            assert sidecar._watching is None, "the document is not in force yet"
            assert sidecar._why_not_ready() == (
                "endpoints vllm.example:80: vllm.example: waiting for DNS"
            )
            starting.cancel()
            await asyncio.wait([starting])
            await sidecar.close()


class TestStop:
    @pytest.mark.parametrize("fault", ["listening", "frozen"])
    async def test_can_come_while_waiting_for_the_api_server(
        self, fault: str, scene: Scene
    ) -> None:
        await scene.configure(STATIC)
        await scene.api.faults(**{fault: fault == "frozen"})
        scene.sidecar.spawn()
        await scene.is_not_ready(f"ConfigMap {scene.namespace}/models: ")
        await scene.ends_on_sigterm()

    async def test_can_come_while_waiting_for_the_document(self, scene: Scene) -> None:
        scene.sidecar.spawn()
        await scene.is_not_ready("not found")
        await scene.ends_on_sigterm()

    @pytest.mark.parametrize(
        "fault", [{"forbidden": ["endpointslices"]}, {"listening": False}, {"frozen": True}]
    )
    async def test_can_come_while_waiting_for_endpoints(
        self, fault: dict[str, Any], scene: Scene, tmp_path: Path
    ) -> None:
        await scene.api.faults(**fault)
        models = tmp_path / "models.yaml"
        models.write_text(scene.by_service)
        scene.configure_by("--models", models)
        scene.sidecar.spawn()
        await scene.is_not_ready("")
        await scene.ends_on_sigterm()

    async def test_can_come_while_the_api_server_is_down(self, scene: Scene) -> None:
        await scene.configure(scene.by_service)
        scene.sidecar.spawn()
        await scene.is_ready()
        await scene.api.faults(listening=False)

        async def has_noticed() -> bool:
            return "watch failed, last known objects kept" in scene.sidecar.error_output()

        await until(has_noticed, SOON, "the sidecar to notice")
        assert await scene.sidecar.is_ready(), "it serves with what it knows"
        await scene.ends_on_sigterm()

    async def test_closes_all_watches(self, scene: Scene) -> None:
        await scene.configure(scene.by_service)
        before = await scene.api.open_watches()
        scene.sidecar.spawn()

        async def watches() -> bool:
            return await scene.api.open_watches() == before + 2

        async def watches_no_more() -> bool:
            return await scene.api.open_watches() == before

        await until(watches, SOON, "the sidecar to watch")
        await scene.is_ready()
        await scene.ends_on_sigterm()
        await until(watches_no_more, SOON, "the watches to end")

    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
    async def test_second_signal_skips_the_drain_without_a_traceback(
        self, number: signal.Signals, tmp_path: Path
    ) -> None:
        models = tmp_path / "models.yaml"
        models.write_text(STATIC)
        # Not forked: a forked process ignores SIGINT from the start.
        sidecar = SidecarProcess(["--models", str(models), "--grace", "600"], tmp_path)
        await sidecar.start()
        async with grpc.aio.insecure_channel(sidecar.listen) as channel:
            call = channel.stream_stream(f"/{SERVICE}/Process")()
            await call.write(request_headers())
            assert await call.read()
            sidecar.signal(number)
            await until(lambda: "draining" in sidecar.error_output(), SOON, "the drain")
            sidecar.signal(number)
            assert await sidecar.wait(SOON) == -number
        assert said(sidecar)[-1].split()[2] == "draining"
