"""Requests that reach Envoy before the sidecar is ready use the fallback route and succeed."""

from __future__ import annotations

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from extproc.edge.grpc.health import SERVICE
from extproc.lab.stack.processes import until
from tests.e2e.cluster_scene import ClusterOptions, ClusterScene, Deploy
from tests.e2e.scene import chat
from tests.extent import PATIENCE

FAILURES = r"http\..*\.ext_proc\.(failure_mode_allowed|message_timeouts)$"


async def healths(scene: ClusterScene) -> dict[str, str]:
    """Return the health status of each service name that a gateway checks."""
    found = {}
    async with grpc.aio.insecure_channel(scene.sidecar.listen) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        for name in ("liveness", "readiness", SERVICE, ""):
            response = await stub.Check(health_pb2.HealthCheckRequest(service=name))
            found[name] = health_pb2.HealthCheckResponse.ServingStatus.Name(response.status)
    return found


@pytest.mark.parametrize("transport", ["fast", "grpcio"])
async def test_requests_take_the_fallback_until_endpoints_are_known(
    deploy: Deploy, transport: str
) -> None:
    arguments = ("--allow-loopback", "--transport", transport)
    scene = await deploy(ClusterOptions(start_sidecar=False, sidecar_arguments=arguments))
    await scene.api.faults(forbidden=["endpointslices"])
    scene.sidecar.spawn()

    async def waits_for_endpoints() -> bool:
        try:
            return "403" in (await scene.sidecar.get("/readyz"))[1]
        except OSError:
            return False

    await until(waits_for_endpoints, PATIENCE, "the sidecar to wait for its endpoints")
    not_ready = dict.fromkeys(("readiness", SERVICE, ""), "NOT_SERVING")
    assert await healths(scene) == {"liveness": "SERVING", **not_ready}

    early = [await scene.send(chat(f"user {i}")) for i in range(5)]
    assert {reply.status for reply in early} == {200}
    log = await scene.access_log(5)
    assert {line["route"] for line in log} == {"fallback"}
    stats = await scene.envoy.stats(FAILURES)
    assert sum(n for name, n in stats.items() if name.endswith("allowed")) == 5
    assert sum(n for name, n in stats.items() if name.endswith("timeouts")) == 0

    await scene.api.faults(forbidden=[])
    await until(scene.sidecar.is_ready, PATIENCE, "the sidecar to be ready")
    assert set((await healths(scene)).values()) == {"SERVING"}
    assert (await scene.send(chat("late"))).status == 200
    assert (await scene.access_log(6))[-1]["route"] == "chosen"
