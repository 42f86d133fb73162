"""The benchmarks as a whole, as `make bench` starts them; `tests/packaging` runs the demo."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from extproc.lab.stack.processes import Process
from tests.extent import PATIENCE


async def output_of(directory: Path, *command: str) -> str:
    """Run a command to its end with exit code 0, and return its output."""
    process = Process("program", [sys.executable, "-m", *command], directory)
    process.spawn()
    try:
        assert await process.wait(20 * PATIENCE) == 0, process.error_output()
    finally:
        await process.stop()
    return process.stdout.read_text()


@pytest.mark.full
async def test_benchmark_prints_its_tables(tmp_path: Path) -> None:
    printed = await output_of(tmp_path, "extproc.lab.bench", "--quick", "--no-peers")
    for text in (
        *("the decision alone", "ring_hash", "sidecar us", "200 send 100 MB", "200 hang"),
        *("decide, known prompt", "PrefixCache: memory", "by their own time"),
        *("SSE responses", "targets", "p99 of a choice"),
    ):
        assert text in printed
