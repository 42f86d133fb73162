"""An API server that fails: no request fails, and changes arrive after its recovery."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from functools import partial

import pytest

from extproc.lab.api_server.builders import config_map
from extproc.lab.stack.processes import until
from tests.e2e.cluster_scene import NAMESPACE, ClusterOptions, ClusterScene, Deploy
from tests.e2e.scene import chat
from tests.extent import FULL, PATIENCE, extent, limit
from tests.faults.report import Report
from tests.faults.streams import CLIENTS, PACE, WHOLE, Streams, streaming

# `make test-outages` sets a minute.
OUTAGE_SECONDS = float(os.environ.get("EXTPROC_OUTAGE_SECONDS", "2"))
CONVERGENCE_SECONDS = limit(35)

DOWN = [{"listening": False}, {"frozen": True}, {"failing": 503}, {"forbidden": ["endpointslices"]}]
SILENT_CLIENTS = extent(4, full=CLIENTS)
"""Few clients, because the test lasts half a minute."""
UP = {"listening": True, "frozen": False, "failing": 0, "forbidden": []}


@pytest.mark.parametrize("fault", DOWN, ids=lambda fault: next(iter(fault)))
async def test_apiserver_down(deploy: Deploy, fault: dict[str, object], report: Report) -> None:
    """No request fails, known state stays, and changes arrive within 35 s of its return."""
    report.tried(
        f"{OUTAGE_SECONDS:g} s without the API server, in this way, under {CLIENTS} streams"
    )
    scene = await deploy(ClusterOptions(replicas=3, pods=2, replica_arguments=PACE))
    async with streaming(scene) as streams:
        await scene.api.faults(**fault)
        await scene.api.drop_watches()
        # The change during the outage arrives after it; the known pods stay.
        await scene.api.apply(scene.pod(2))
        before = await scene.metric("extproc_discovery_age_seconds", model="llama")
        await asyncio.sleep(OUTAGE_SECONDS)
        age = await scene.metric("extproc_discovery_age_seconds", model="llama")
        assert age >= before + OUTAGE_SECONDS - 1
        assert await scene.ready() == set(scene.replicas.addresses[:2])
        status, _ = await scene.sidecar.get("/readyz")
        assert status == 200
        await scene.api.faults(**UP)
        began = time.monotonic()
        await scene.routes_to(0, 1, 2, seconds=CONVERGENCE_SECONDS)
        took = time.monotonic() - began
        assert await scene.metric("extproc_discovery_age_seconds", model="llama") < limit(2)
    report_losses(report, streams, f"caught up {took:.1f} s after its return")
    assert streams.outcomes.keys() == {WHOLE}
    assert {line["route"] for line in await scene.access_log(streams.whole)} == {"chosen"}


async def test_watch_410(deploy: Deploy, report: Report) -> None:
    """An expired version costs one list, and never an empty set."""
    report.tried(f"3 watches broken and their version expired, under {CLIENTS} streams")
    scene = await deploy(ClusterOptions(replicas=2, replica_arguments=PACE))

    async def count(what: str, result: str) -> float:
        return await scene.metric(
            f"extproc_discovery_{what}_total", resource="endpointslices", result=result
        )

    async def expired(times: int) -> bool:
        return await count("watches", "expired") == times

    async def both_watch() -> bool:
        return await scene.api.open_watches() == 2

    async with streaming(scene) as streams:
        for times in range(1, 4):
            await until(both_watch, PATIENCE, "ConfigMap and slices to be watched")
            await asyncio.sleep(1)
            await scene.api.apply(config_map(NAMESPACE, "unrelated", {"turn": str(times)}))
            await scene.api.compact()
            await scene.api.drop_watches(abort=True)
            await until(partial(expired, times), PATIENCE, "the version to expire")
    lists = await count("lists", "ok")
    report_losses(report, streams, f"{lists - 1:g} new lists")
    assert streams.outcomes.keys() == {WHOLE}
    log = await scene.access_log(streams.whole)
    assert {line["endpoint"] for line in log} == set(scene.replicas.addresses)
    assert lists == 1 + 3


async def test_watch_silent(deploy: Deploy, report: Report) -> None:
    """The sidecar gives up a half-open connection within 40 s, although its end never arrives."""
    report.tried(f"every watch silent, and a new pod, under {SILENT_CLIENTS} streams")
    scene = await deploy(ClusterOptions(replicas=3, pods=2, replica_arguments=PACE))
    async with streaming(scene, SILENT_CLIENTS) as streams:
        await scene.api.faults(silent_watches=True)
        await scene.api.apply(scene.pod(2))
        began = time.monotonic()
        await scene.routes_to(0, 1, 2, seconds=CONVERGENCE_SECONDS + 5)
        took = time.monotonic() - began
    report_losses(report, streams, f"noticed after {took:.1f} s")
    assert streams.outcomes.keys() == {WHOLE}
    assert await scene.metric(
        "extproc_discovery_watches_total", resource="endpointslices", result="unreachable"
    )


async def test_apiserver_goaway(deploy: Deploy, report: Report) -> None:
    """The sidecar moves to another connection, and no change is lost."""
    times = extent(2, full=5)
    report.tried(f"{times} times GOAWAY on the HTTP/2 connection, under {CLIENTS} streams")
    scene = await deploy(ClusterOptions(replicas=2, replica_arguments=PACE, tls=True))
    async with streaming(scene) as streams:
        for _ in range(times):
            # After shorter watches the sidecar waits longer and longer.
            await asyncio.sleep(1.5)
            await scene.api.faults(goaway=True)
            await scene.remove(1)
            await scene.routes_to(0, seconds=PATIENCE)
            await scene.api.drop_watches()
            await scene.api.apply(scene.pod(1))
            await scene.routes_to(0, 1, seconds=PATIENCE)
    requests = await scene.api.requests()
    ports = {one["client_port"] for one in requests}
    report_losses(report, streams, f"{len(ports)} connections")
    assert streams.outcomes.keys() == {WHOLE}
    assert len(ports) > 1
    slices = [one["verb"] for one in requests if one["resource"] == "endpointslices"]
    assert slices.count("list") == 1


@pytest.mark.skipif(not FULL, reason="lasts half a minute; TestSilence has the same, but shorter")
async def test_apiserver_stopped(deploy: Deploy, report: Report) -> None:
    """Over HTTP/2, a PING notices within 35 s that the server no longer responds."""
    report.tried(f"SIGSTOP of the API server until noticed, under {SILENT_CLIENTS} streams")
    scene = await deploy(ClusterOptions(replicas=2, replica_arguments=PACE, tls=True))

    async def is_noticed() -> bool:
        labels = {"resource": "endpointslices", "result": "unreachable"}
        return await scene.metric("extproc_discovery_watches_total", **labels) > 0

    async with streaming(scene, SILENT_CLIENTS) as streams:
        scene.api.signal(signal.SIGSTOP)
        began = time.monotonic()
        await until(is_noticed, CONVERGENCE_SECONDS, "the silence to be noticed")
        took = time.monotonic() - began
        scene.api.signal(signal.SIGCONT)
        await scene.remove(1)
        await scene.routes_to(0, seconds=CONVERGENCE_SECONDS)
    report_losses(report, streams, f"noticed after {took:.1f} s")
    assert streams.outcomes.keys() == {WHOLE}


async def test_apiserver_late(deploy: Deploy, report: Report) -> None:
    """A sidecar that starts before the API server is unready, and Envoy uses its fallback."""
    report.tried(f"a start without an API server, under {CLIENTS} streams")
    scene = await deploy(ClusterOptions(replicas=2, start_sidecar=False, replica_arguments=PACE))
    await scene.api.faults(listening=False)
    scene.sidecar.spawn()
    await until(lambda: admin_responds(scene), PATIENCE, "the admin port")
    async with streaming(scene) as streams:
        log = await scene.access_log(CLIENTS)
        status, reason = await scene.sidecar.get("/readyz")
        assert status == 503
        assert reason.startswith("ConfigMap inference/extproc-models: ")
        assert {line["route"] for line in log} == {"fallback"}
        await scene.api.faults(listening=True)
        await until(scene.sidecar.is_ready, CONVERGENCE_SECONDS, "the sidecar to be ready")
        await asyncio.sleep(0.5)
    report_losses(report, streams)
    assert streams.outcomes.keys() == {WHOLE}
    assert (await scene.send(chat("hello"))).status == 200
    lines = await scene.access_log(streams.whole + 1)
    assert lines[-1]["route"] == "chosen"


def report_losses(report: Report, streams: Streams, *results: str) -> None:
    """Report the streams that were lost, with further results."""
    what = "; ".join([f"of {streams.whole} streams", *results])
    report.lost(failed=streams.failed, cut=streams.cut, what=what)


async def admin_responds(scene: ClusterScene) -> bool:
    try:
        status, _ = await scene.sidecar.get("/healthz")
    except OSError:
        return False
    return status == 200
