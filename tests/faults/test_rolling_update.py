"""A rolling update of two sidecars. Each becomes unready, takes no new streams, then exits."""

from __future__ import annotations

import asyncio
import copy
import signal
import time
from pathlib import Path

from extproc.lab.stack.processes import free_port
from extproc.lab.stack.sidecar import SidecarProcess
from tests.e2e.forked import ForkedFileSidecar
from tests.e2e.scene import Json, Launch, Options
from tests.extent import PATIENCE, limit
from tests.faults.report import Report
from tests.faults.streams import CLIENTS, PACE, streaming
from tests.faults.watcher import GOAWAY, Watcher

GRACE = 10


async def restart(sidecar: SidecarProcess) -> tuple[float, list[str]]:
    """Stop and restart it as a rollout does. Return the seconds to its exit, and its events."""
    watcher = await Watcher.connect(sidecar.listen)
    began = time.monotonic()
    sidecar.signal(signal.SIGTERM)
    await asyncio.wait_for(watcher.closed.wait(), PATIENCE)
    assert (await sidecar.get("/readyz"))[0] == 503
    watcher.close()
    assert await sidecar.wait(PATIENCE) == 0
    took = time.monotonic() - began
    await sidecar.start()
    return took, watcher.events


async def test_sidecar_sigterm(launch: Launch, report: Report, tmp_path: Path) -> None:
    """A rolling update fails no request: unready before GOAWAY, ended within the grace period."""
    address = f"127.0.0.1:{free_port()}"

    def with_both(config: Json) -> None:
        (cluster,) = (c for c in config["static_resources"]["clusters"] if c["name"] == "extproc")
        endpoints = cluster["load_assignment"]["endpoints"][0]["lb_endpoints"]
        other = copy.deepcopy(endpoints[0])
        socket_address = other["endpoint"]["address"]["socket_address"]
        socket_address["port_value"] = int(address.rpartition(":")[2])
        endpoints.append(other)

    grace = ("--grace", str(GRACE))
    options = Options(change_config=with_both, replica_arguments=PACE, sidecar_arguments=grace)
    scene = await launch(options)
    (tmp_path / "second").mkdir()
    models = options.models(scene.replicas.addresses)
    second = ForkedFileSidecar(models, tmp_path / "second", listen=address, arguments=grace)
    try:
        await second.start()
        report.tried(f"SIGTERM to one of two sidecars, then to the other, under {CLIENTS} streams")
        async with streaming(scene) as streams:
            drains = [await restart(scene.sidecar), await restart(second)]
            await asyncio.sleep(0.5)
    finally:
        await second.kill()
    slowest = max(took for took, _ in drains)
    report.lost(
        failed=streams.failed,
        cut=streams.cut,
        what=f"of {streams.whole} streams; the longer drain took {slowest:.1f} s of {GRACE} s",
    )
    assert streams.outcomes.keys() == {"whole"}
    for took, events in drains:
        assert events == ["SERVING", "NOT_SERVING", GOAWAY]
        assert took < limit(GRACE)
