"""Memory and CPU time of thousands of open streams.

Each setup restarts for each number of streams, because a process rarely returns memory. "At" is the
moment when the last stream has its first chunk.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from extproc.lab.bench.ways import Running, Way, start_upstreams
from extproc.lab.load import limits
from extproc.lab.stack.processes import Process

CHUNKS = 100


@dataclass(frozen=True)
class Crowd:
    """A number of concurrent streams."""

    streams: int
    interval: float
    """Seconds between two chunks: enough for Envoy, which takes some 20 us for each."""
    settle_seconds: float = 1.0
    """Seconds after the last stream, before memory is read again."""


CROWDS = (Crowd(2_000, 0.06), Crowd(8_000, 0.2))
QUICK = (Crowd(20, 0.005, settle_seconds=0.0),)


@dataclass(frozen=True)
class Memory:
    """Megabytes of a process: before any stream, with all of them, after the last."""

    before: float
    at: float
    after: float

    def per_stream_kb(self, streams: int) -> float:
        """Return the added memory of each stream."""
        return (self.at - self.before) * 1e3 / streams


@dataclass(frozen=True)
class Held:
    """A setup with its streams."""

    way: str
    streams: int
    at_once: int
    """The most streams that were open together: all of them, if none failed."""
    proxy: Memory
    sidecar: Memory | None
    proxy_us: float
    sidecar_us: float | None
    """CPU time of each stream, including all its chunks."""
    seconds: float
    failed: int


async def measure(
    ways: Sequence[Way], crowds: Sequence[Crowd], directory: Path, progress: Callable[[], object]
) -> list[Held]:
    """Measure all setups with each number of streams."""
    limits.raise_file_limit()  # open files, inherited by the processes that start here
    found = []
    for crowd in crowds:
        for number, way in enumerate(ways):
            own = directory / f"{crowd.streams}-{number}"
            own.mkdir()
            found.append(await _hold(way, crowd, own))
            progress()
    return found


async def _hold(way: Way, crowd: Crowd, directory: Path) -> Held:
    async with AsyncExitStack() as cleanup:
        arguments = ["--chunks", str(CHUNKS), "--interval", str(crowd.interval)]
        arguments += ["--together", str(crowd.streams)]
        _, addresses = await start_upstreams(directory, cleanup, arguments)
        running = await way.start(addresses, directory, cleanup)
        before, spent = _megabytes(running), _cpu_seconds(running)
        client = await _client(running.port, crowd.streams)
        opened, at = await _next_line(client), _megabytes(running)
        ended = await _next_line(client)
        await client.wait()
        await asyncio.sleep(crowd.settle_seconds)
        after, total = _megabytes(running), _cpu_seconds(running)
        each = [(b - a) / crowd.streams * 1e6 for a, b in zip(spent, total, strict=True)]
        memory = [Memory(*megabytes) for megabytes in zip(before, at, after, strict=True)]
        return Held(
            way=way.name,
            streams=crowd.streams,
            at_once=int(opened["at_once"]),
            proxy=memory[0],
            sidecar=memory[1] if running.sidecar else None,
            proxy_us=each[0],
            sidecar_us=each[1] if running.sidecar else None,
            seconds=ended["seconds"],
            failed=int(ended["failed"]) + await running.undecided(),
        )


async def _client(port: int, streams: int) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "extproc.lab.bench.sse_client"),
        *("--port", str(port), "--streams", str(streams)),
        stdout=asyncio.subprocess.PIPE,
    )


async def _next_line(client: asyncio.subprocess.Process) -> dict[str, float]:
    """Return the next line. Raises RuntimeError if there is none."""
    assert client.stdout is not None
    line = await client.stdout.readline()
    if not line:
        raise RuntimeError(f"the streams' client exited with code {await client.wait()}")
    figures: dict[str, float] = json.loads(line)
    return figures


def _megabytes(running: Running) -> list[float]:
    return [process.resident_bytes() / 1e6 for process in _processes(running)]


def _cpu_seconds(running: Running) -> list[float]:
    return [process.cpu_seconds() for process in _processes(running)]


def _processes(running: Running) -> list[Process]:
    return [running.proxy, running.sidecar] if running.sidecar else [running.proxy]
