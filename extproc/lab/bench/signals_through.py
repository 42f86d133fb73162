"""The same fleets during whole requests through Envoy."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

from extproc.lab.bench import configs
from extproc.lab.bench.load import drive
from extproc.lab.bench.signal_ways import Way, fleets_of
from extproc.lab.bench.ways import start_upstreams
from extproc.lab.stack.envoy import Envoy
from extproc.lab.stack.sidecar import FileSidecar

CONNECTIONS = 2
_SIZE = 1_000


async def measure(
    measured: Sequence[Way], directory: Path, seconds: float, progress: Callable[[], object]
) -> None:
    """Measure each fleet for this number of seconds; latencies are those of whole requests."""
    async with AsyncExitStack() as cleanup:
        fleets = await fleets_of(directory, cleanup)
        _, upstreams = await start_upstreams(directory, cleanup)
        sidecar = FileSidecar(measured[0].document([], upstreams), directory)
        cleanup.push_async_callback(sidecar.stop)
        envoy = Envoy(configs.with_sidecar(sidecar.listen, upstreams), directory)
        cleanup.push_async_callback(envoy.stop)
        await envoy.start()
        for way in measured:
            sidecar.write_models(way.document(fleets[way.manner], upstreams))
            await sidecar.start()
            await drive(envoy.ports["llm"], _SIZE, CONNECTIONS, min(seconds, 0.5))
            await asyncio.sleep(min(way.settle_seconds(), 2 * seconds))
            before = sidecar.cpu_seconds()
            load = await drive(envoy.ports["llm"], _SIZE, CONNECTIONS, seconds)
            way.cpu_seconds = sidecar.cpu_seconds() - before
            way.latencies, way.failed, way.seconds = load.latencies, load.failed, load.seconds
            await sidecar.stop()
            progress()
