"""Loads, each generated in its own process."""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory


@dataclass(frozen=True)
class Load:
    """The result of a load."""

    latencies: list[float]
    """Seconds, in the order of the responses."""
    failed: int
    seconds: float
    cpu_seconds: float
    """CPU time of the generator."""

    def percentile_ms(self, percent: float) -> float:
        """Return a percentile of the latencies; NaN without responses."""
        ordered = sorted(self.latencies)
        return ordered[int(len(ordered) * percent / 100)] * 1e3 if ordered else float("nan")


async def drive(port: int, size: int, connections: int, seconds: float) -> Load:
    """Send bodies of `size` bytes over `connections` for `seconds`. Raises RuntimeError.

    The generator writes its figures to a file, because they may exceed one write to a pipe.
    """
    with TemporaryDirectory() as directory:
        figures = Path(directory, "figures.json")
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "extproc.lab.bench.client", str(figures), "--port", str(port)),
            *("--size", str(size), "--connections", str(connections), "--seconds", str(seconds)),
        )
        if code := await process.wait():
            raise RuntimeError(f"the load generator exited with code {code}")
        return Load(**json.loads(figures.read_bytes()))
