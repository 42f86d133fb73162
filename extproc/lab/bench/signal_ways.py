"""Fleets whose metrics are read during decisions, and the results; see `signals`."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import fmean, median
from typing import Any

from extproc.lab.bench.grid import Grid
from extproc.lab.bench.metrics_endpoints import Manner
from extproc.lab.bench.wire import MODEL
from extproc.lab.stack.processes import Process, until

ENDPOINTS = 200

# By then, failing endpoints are scraped rarely, and flooding ones not at all for a while.
SETTLE_SECONDS = 10.0
_WINDOWS = 20
_READING = "LeastQueue"
"""A strategy that reads the metrics of its endpoints."""


@dataclass
class Way:
    """One kind of fleet during decisions, and the results."""

    name: str
    manner: Manner
    strategy: str
    latencies: list[float] = field(default_factory=list)
    """Seconds from sending a request to its reply, in the order of the replies."""
    failed: int = 0
    cpu_seconds: float = 0.0
    seconds: float = 0.0
    readings: Counter[str] = field(default_factory=Counter)

    def signal_read(self, path: str, result: str) -> None:
        """Count a scrape."""
        self.readings[result] += 1

    def percentile_us(self, percent: float) -> float:
        """Return a percentile of the latencies, in microseconds."""
        size = max(len(self.latencies) // _WINDOWS, 1)
        windows = (self.latencies[i : i + size] for i in range(0, len(self.latencies), size))
        return median(sorted(w)[int(len(w) * percent / 100)] for w in windows) * 1e6

    def settle_seconds(self, longest: float = SETTLE_SECONDS) -> float:
        """Return the time to wait for a steady state. Only scrapes need it in full."""
        return longest if self.strategy == _READING else longest / 10

    @property
    def cpu_percent(self) -> float:
        """Share of one core."""
        return 100 * self.cpu_seconds / self.seconds

    def document(self, addresses: Sequence[str], served_by: Sequence[str]) -> dict[str, Any]:
        """Return the models: one that requests call, and the fleet."""
        fleet = {"strategy": self.strategy}
        return {
            "models": [
                {"name": MODEL, "endpoints": list(served_by)},
                {"name": "fleet", "endpoints": list(addresses), "loadBalancing": fleet},
            ]
        }


def ways() -> list[Way]:
    """Return the compared fleets, each between two periods without scrapes.

    The differences between those periods show the noise.
    """
    found = [_alone()]
    for name, manner in (
        ("answer", Manner.HEALTHY),
        ("hang", Manner.HANG),
        ("send 100 MB", Manner.FLOOD),
    ):
        found += [Way(f"{ENDPOINTS} {name}", manner, _READING), _alone()]
    return found


def _alone() -> Way:
    return Way("no scrapes", Manner.HEALTHY, "PrefixHash")


async def fleets_of(directory: Path, cleanup: AsyncExitStack) -> Mapping[Manner, list[str]]:
    """Start a process of stand-in endpoints for each manner and return their addresses."""
    found = {}
    for manner in Manner:
        arguments = ["--ports", str(ENDPOINTS), "--manner", manner]
        process = spawn("bench.metrics_endpoints", arguments, manner, directory, cleanup)
        await until(partial(_has_printed, process), 20, f"{manner} endpoints")
        found[manner] = [f"127.0.0.1:{port}" for port in json.loads(process.stdout.read_text())]
    return found


def _has_printed(process: Process) -> bool:
    return process.stdout.read_text().endswith("\n")


def spawn(
    module: str, arguments: Sequence[str], name: str, directory: Path, cleanup: AsyncExitStack
) -> Process:
    """Start a program of the laboratory."""
    command = [sys.executable, "-m", f"extproc.lab.{module}", *arguments]
    process = Process(name, command, directory)
    cleanup.push_async_callback(process.stop)
    process.spawn()
    return process


def grid(title: str, measured: Sequence[Way]) -> Grid:
    """Compare each fleet with the periods without scrapes before and after it."""
    rows = []
    for position, way in enumerate(measured):
        neighbors = (
            measured[max(position - 1, 0) : position + 2 : 2] if position % 2 else measured[::2]
        )
        p50, p99 = way.percentile_us(50), way.percentile_us(99)
        readings = (f"{n / way.seconds:.1f} {result}" for result, n in way.readings.items())
        rows.append(
            [
                way.name,
                ", ".join(readings) or "-",
                f"{len(way.latencies):,}",
                f"{p50:.0f}",
                f"{p50 / fmean(one.percentile_us(50) for one in neighbors):.2f}",
                f"{p99:.0f}",
                f"{p99 / fmean(one.percentile_us(99) for one in neighbors):.2f}",
                f"{way.cpu_percent:.1f}",
            ]
        )
    headings = ["endpoints", "readings per second", "decisions", "p50 us", "ratio", "p99 us"]
    return Grid(title, [*headings, "ratio", "CPU %"], rows, left=2)
