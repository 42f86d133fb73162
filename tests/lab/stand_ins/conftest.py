"""Stand-in servers as processes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.lab.stand_ins.server import TIME_SCALE, Server, stand_in


@pytest.fixture(scope="module")
def fast() -> Iterator[Server]:
    """Two replicas, fifty times faster than real time."""
    with stand_in("--ports", "0,0", "--time-scale", str(TIME_SCALE)) as server:
        yield server


@pytest.fixture(scope="module")
def slow() -> Iterator[Server]:
    """One replica in real time, with a model name and a batch of two requests."""
    with stand_in("--ports", "0", "--model", "base,adapter", "--max-num-seqs", "2") as server:
        yield server


@pytest.fixture(scope="module")
def lora() -> Iterator[Server]:
    """Two replicas with LoRA and two adapters, fifty times faster than real time."""
    command = ["--ports", "0,0", "--time-scale", str(TIME_SCALE), "--adapters", "a,b"]
    with stand_in(*command, "--max-loras", "2", "--max-cpu-loras", "4") as server:
        yield server
