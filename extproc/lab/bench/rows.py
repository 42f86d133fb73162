"""Every setup under every load.

All setups run during the whole measurement, in front of the same upstreams, and take turns. A row
is the median over short rounds of each setup. So other processes on the machine affect all setups
alike.

CPU time per request is the most reliable figure: it hardly depends on other processes. Requests per
second show how well a setup's processes share two cores with the generator and the upstreams, which
are the same for all.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, fields, replace
from pathlib import Path
from statistics import median
from typing import Any

from extproc.lab.bench.load import Load, drive
from extproc.lab.bench.ways import Running, Way, start_upstreams
from extproc.lab.stack.processes import Process

SIZES = {"1 kB": 1_000, "32 kB": 32_000, "400 kB": 400_000, "2 MB": 2_000_000}
CONNECTIONS = (1, 32, 256)


@dataclass(frozen=True)
class Effort:
    """The extent of the measurement."""

    sizes: Sequence[str] = tuple(SIZES)
    connections: Sequence[int] = CONNECTIONS
    rounds: int = 3
    seconds: float = 0.6
    """Seconds of each setup's round."""
    warm_up_seconds: float = 0.7
    """Seconds of each setup before all rows."""


QUICK = Effort(("2 MB",), (2,), rounds=1, seconds=0.1, warm_up_seconds=0.1)
"""Shows that everything runs; the figures mean nothing."""


@dataclass(frozen=True)
class Figures:
    """Figures of one round, or the medians of several."""

    per_second: float
    p50_ms: float
    p99_ms: float
    proxy_us: float
    """CPU time per request, user and system, of Envoy or of the router in its place."""
    sidecar_us: float | None
    proxy_mb: float
    sidecar_mb: float | None
    generator_cores: float
    upstream_cores: float
    failed: int
    """Requests without a response, with another status than 200, or not decided by the sidecar."""

    @property
    def cpu_us(self) -> float:
        """CPU time per request of all processes of the setup."""
        return self.proxy_us + (self.sidecar_us or 0)


@dataclass(frozen=True)
class Row:
    """A setup under a load."""

    way: str
    size: str
    connections: int
    figures: Figures


@dataclass
class _Stage:
    """The running processes."""

    upstream: Process
    running: dict[str, Running]

    async def round(self, way: str, size: int, connections: int, seconds: float) -> Figures:
        """Run one round of one setup."""
        running = self.running[way]
        watched = [self.upstream, running.proxy, running.sidecar]
        undecided = await running.undecided()
        before = [_cpu_seconds(process) for process in watched]
        load = await drive(running.port, size, connections, seconds)
        spent = [_cpu_seconds(one) - then for one, then in zip(watched, before, strict=True)]
        for process in watched[1:]:
            _forget_output(process)
        failed = load.failed + await running.undecided() - undecided
        return _figures(replace(load, failed=failed), running, *spent)


async def measure(
    ways: Sequence[Way], effort: Effort, directory: Path, progress: Callable[[], object]
) -> list[Row]:
    """Measure all rows, ordered by size, connections and setup."""
    async with AsyncExitStack() as cleanup:
        upstream, addresses = await start_upstreams(directory, cleanup)
        stage = _Stage(upstream, {})
        for number, way in enumerate(ways):
            own = directory / str(number)
            own.mkdir()
            stage.running[way.name] = await way.start(addresses, own, cleanup)
            await stage.round(way.name, SIZES["1 kB"], 32, effort.warm_up_seconds)
        found = []
        for size in effort.sizes:
            for connections in effort.connections:
                found += await _row(stage, size, connections, effort)
                progress()
        return found


async def _row(stage: _Stage, size: str, connections: int, effort: Effort) -> list[Row]:
    rounds: dict[str, list[Figures]] = {way: [] for way in stage.running}
    for _ in range(effort.rounds):
        for way, found in rounds.items():
            found.append(await stage.round(way, SIZES[size], connections, effort.seconds))
    return [Row(way, size, connections, medians(found)) for way, found in rounds.items()]


def medians(rounds: Sequence[Figures]) -> Figures:
    """Return the median of each figure, and the sum of all failures."""
    found: dict[str, Any] = {}
    for name in (field.name for field in fields(Figures)):
        values = [getattr(one, name) for one in rounds]
        found[name] = None if None in values else median(values)
    return Figures(**{**found, "failed": sum(one.failed for one in rounds)})


def _figures(
    load: Load, running: Running, upstream: float, proxy: float, sidecar: float
) -> Figures:
    # A setup without responses has failed, so its cost does not matter.
    answers = len(load.latencies) or 1
    sidecar_process = running.sidecar
    return Figures(
        per_second=len(load.latencies) / load.seconds,
        p50_ms=load.percentile_ms(50),
        p99_ms=load.percentile_ms(99),
        proxy_us=proxy / answers * 1e6,
        sidecar_us=sidecar / answers * 1e6 if sidecar_process else None,
        proxy_mb=running.proxy.resident_bytes() / 1e6,
        sidecar_mb=sidecar_process.resident_bytes() / 1e6 if sidecar_process else None,
        generator_cores=load.cpu_seconds / load.seconds,
        upstream_cores=upstream / load.seconds,
        failed=load.failed,
    )


def _cpu_seconds(process: Process | None) -> float:
    return process.cpu_seconds() if process else 0.0


def _forget_output(process: Process | None) -> None:
    """Truncate the logs, because access logs would take gigabytes. They are open for appending."""
    for output in (process.stdout, process.stderr) if process else ():
        os.truncate(output, 0)
