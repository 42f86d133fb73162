"""SIGTERM, one sidecar after the other: unready first, then no new streams, then the end."""

from __future__ import annotations

import asyncio
import copy
import signal
import time
from pathlib import Path

from extproc.lab.stack.processes import free_port
from extproc.lab.stack.sidecar import FileSidecar, SidecarProcess
from tests.e2e.scene import Json, Launch, Options
from tests.extent import PATIENCE, limit
from tests.faults.report import Report
from tests.faults.streams import CLIENTS, PACE, streaming
from tests.faults.watcher import GOAWAY, Watcher

GRACE = 10


async def replaced(sidecar: SidecarProcess) -> tuple[float, list[str]]:
    """Ends it as a rollout does and starts it anew; the seconds that took, and what it said."""
    watcher = await Watcher.of(sidecar.listen)
    began = time.monotonic()
    sidecar.signal(signal.SIGTERM)
    await asyncio.wait_for(watcher.left.wait(), PATIENCE)
    assert (await sidecar.get("/readyz"))[0] == 503
    watcher.close()
    assert await sidecar.wait(PATIENCE) == 0
    took = time.monotonic() - began
    await sidecar.start()
    return took, watcher.heard


async def test_sidecar_sigterm(launch: Launch, report: Report, tmp_path: Path) -> None:
    """A rolling update of two sidecars fails nothing: unready before GOAWAY, gone within grace."""
    address = f"127.0.0.1:{free_port()}"

    def with_both(config: Json) -> None:
        (cluster,) = (c for c in config["static_resources"]["clusters"] if c["name"] == "extproc")
        endpoints = cluster["load_assignment"]["endpoints"][0]["lb_endpoints"]
        other = copy.deepcopy(endpoints[0])
        place = other["endpoint"]["address"]["socket_address"]
        place["port_value"] = int(address.rpartition(":")[2])
        endpoints.append(other)

    grace = ("--grace", str(GRACE))
    options = Options(change_config=with_both, replica_arguments=PACE, sidecar_arguments=grace)
    scene = await launch(options)
    (tmp_path / "second").mkdir()
    models = options.models(scene.replicas.addresses)
    second = FileSidecar(models, tmp_path / "second", listen=address, arguments=grace)
    try:
        await second.start()
        report.tried(f"SIGTERM to one of two sidecars, then to the other, under {CLIENTS} streams")
        async with streaming(scene) as streams:
            drains = [await replaced(scene.sidecar), await replaced(second)]
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
    for took, heard in drains:
        assert heard == ["SERVING", "NOT_SERVING", GOAWAY]
        assert took < limit(GRACE)
