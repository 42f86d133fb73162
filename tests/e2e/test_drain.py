"""After SIGTERM the sidecar is not ready, running streams finish, and the exit code is 0."""

from __future__ import annotations

import signal

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from extproc.lab.stack.processes import until
from tests.e2e.scene import Launch, Options, Scene, chat
from tests.extent import PATIENCE

SERVING = health_pb2.HealthCheckResponse.SERVING


async def health(scene: Scene) -> int:
    async with grpc.aio.insecure_channel(scene.sidecar.listen) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        response = await stub.Check(health_pb2.HealthCheckRequest())
    return int(response.status)


@pytest.mark.parametrize("grace", ["10", "0.3"])
async def test_a_drain_does_not_interrupt_running_streams(launch: Launch, grace: str) -> None:
    scene = await launch(
        Options(sidecar_arguments=("--grace", grace), replica_arguments=("--time-scale", "1"))
    )
    assert await health(scene) == SERVING
    async with scene.stream(chat("hello", tokens=40)) as response:
        await scene.agree_on_inflight(1)
        scene.sidecar.signal(signal.SIGTERM)

        async def unready() -> bool:
            return (await scene.sidecar.get("/readyz"))[0] == 503

        if grace == "10":
            await until(unready, PATIENCE, "the sidecar to report that it is not ready")
            assert (await scene.sidecar.get("/healthz"))[0] == 200
        # During the drain, new requests succeed without a routing decision.
        assert (await scene.send(chat("meanwhile", tokens=1))).status == 200
        assert (await response.read()).endswith(b"data: [DONE]\n\n")
    assert await scene.sidecar.wait() == 0


async def test_an_idle_sidecar_stops_at_once(launch: Launch) -> None:
    scene = await launch(Options(sidecar_arguments=("--grace", "60")))
    scene.sidecar.signal(signal.SIGTERM)
    assert await scene.sidecar.wait(5) == 0
