"""The behavior of the running bundled gateway."""

from __future__ import annotations

import asyncio

from extproc.lab.stack.processes import until
from tests.extent import PATIENCE
from tests.manifests.gateway import RunningGateway


async def test_routes_by_prefix_and_without_the_sidecar_by_the_fallback(
    gateway: RunningGateway,
) -> None:
    answers = {await gateway.ask("the same beginning") for _ in range(6)}
    assert len(answers) == 1
    assert answers.pop()[0] == 200
    gateway.kill_sidecar()
    ports = {await gateway.ask("the same beginning") for _ in range(12)}
    assert {status for status, _, _ in ports} == {200}
    assert len(ports) > 1
    clusters = await gateway.envoy.stats("^cluster.(first-candidate|fallback).upstream_rq_total$")
    assert clusters == {
        "cluster.first-candidate.upstream_rq_total": 6,
        "cluster.fallback.upstream_rq_total": 12,
    }


async def test_stats_listener_serves_only_probes_and_metrics(
    gateway: RunningGateway,
) -> None:
    assert await gateway.stats("/live") == (200, "ok\n")
    assert await gateway.stats("/ready") == (200, "LIVE\n")
    status, metrics = await gateway.stats("/stats/prometheus")
    assert status == 200
    assert "envoy_cluster_upstream_rq_total" in metrics
    for path in ("/", "/config_dump", "/quitquitquit", "/healthcheck/fail", "/stats", "/ready/.."):
        for method in ("GET", "POST"):
            assert (await gateway.stats(path, method))[0] == 404, (method, path)
    for path in ("/ready", "/stats/prometheus"):
        assert (await gateway.stats(path, "POST"))[0] == 404


async def test_drain_ends_when_the_running_stream_ends(
    gateway: RunningGateway,
) -> None:
    # One 41 ms step of the response proves that the stream runs.
    async with gateway.stream(tokens=60) as response:
        await response.content.readline()
        drain = await gateway.drain(DRAIN_MIN="0", DRAIN_MAX="30")

        async def draining() -> bool:
            return (await gateway.stats("/ready"))[0] == 503

        await until(draining, PATIENCE, "Envoy to say that it drains")
        # Envoy still serves, and asks clients to close their connections.
        assert (await gateway.stats("/live"))[0] == 200
        status, _, connection = await gateway.ask("meanwhile")
        assert (status, connection) == (200, "close")
        assert drain.returncode is None
        assert (await response.read()).endswith(b"data: [DONE]\n\n")
    assert await asyncio.wait_for(drain.wait(), 5) == 0


async def test_drain_ends_at_its_limit(gateway: RunningGateway) -> None:
    async with gateway.stream(tokens=400) as response:
        await response.content.readline()
        drain = await gateway.drain(DRAIN_MIN="0", DRAIN_MAX="1")
        _, complaint = await asyncio.wait_for(drain.communicate(), 8)
    assert drain.returncode == 0
    assert b"still in flight after 1 s" in complaint


async def test_idle_envoy_drains_at_once(gateway: RunningGateway) -> None:
    await gateway.ask("hello")
    drain = await gateway.drain(DRAIN_MIN="0", DRAIN_MAX="30")
    assert await asyncio.wait_for(drain.wait(), 3) == 0
