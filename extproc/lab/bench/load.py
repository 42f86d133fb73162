"""Loads, each by a generator in a process of its own, so that it shares nothing with others."""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import dataclass


@dataclass(frozen=True)
class Load:
    """What came of one."""

    latencies: list[float]
    """Seconds, in the order of the answers."""
    failed: int
    seconds: float
    cpu_seconds: float
    """Of the generator."""

    def percentile_ms(self, percent: float) -> float:
        """Of the latencies; not a number if nobody answered."""
        ordered = sorted(self.latencies)
        return ordered[int(len(ordered) * percent / 100)] * 1e3 if ordered else float("nan")


async def drive(port: int, size: int, connections: int, seconds: float) -> Load:
    """Bodies of so many bytes over so many connections, for so long. Raises RuntimeError."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "extproc.lab.bench.client", "--port", str(port)),
        *("--size", str(size), "--connections", str(connections), "--seconds", str(seconds)),
        stdout=asyncio.subprocess.PIPE,
    )
    printed, _ = await process.communicate()
    if process.returncode:
        raise RuntimeError(f"the load generator exited with code {process.returncode}")
    return Load(**json.loads(printed))
