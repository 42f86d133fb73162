"""The cost of bad metrics for decisions, compared with good metrics."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from statistics import quantiles
from time import perf_counter

import pytest

from extproc.lab.bench import metrics_endpoints
from extproc.lab.stack.processes import Process
from tests.e2e.scene import Json, Launch, Options, Scene, chat, manager_of
from tests.faults import bad_metrics
from tests.faults.report import Report

TURNS = 40_000
ALLOWED = 1.05


class Engines(Process):
    """A program that serves metrics on several ports, and prints the ports."""

    def __init__(self, directory: Path, program: str, *arguments: str) -> None:
        super().__init__(Path(program).stem, [sys.executable, program, *arguments], directory)

    async def is_ready(self) -> bool:
        return self.stdout.read_text().endswith("\n")

    @property
    def addresses(self) -> list[str]:
        return [f"127.0.0.1:{port}" for port in json.loads(self.stdout.read_text())]


@asynccontextmanager
async def running(process: Engines) -> AsyncIterator[Engines]:
    await process.start()
    yield process
    await process.kill()


def respond_directly(config: Json) -> None:
    """Let Envoy itself respond, because an engine's time would hide the sidecar's."""
    (host,) = manager_of(config)["route_config"]["virtual_hosts"]
    chosen = host["routes"][0]
    assert chosen.pop("route")["cluster"] == "chosen"
    chosen["direct_response"] = {"status": 200}


async def seconds_to_decision(scene: Scene) -> float:
    """Return the seconds to a decision."""
    began = perf_counter()
    reply = await scene.send(chat("hello"))
    assert (reply.status, reply.body) == (200, b"")
    return perf_counter() - began


@pytest.mark.soak
async def test_bad_metrics_delay(launch: Launch, report: Report, tmp_path: Path) -> None:
    """With bad metrics, 99 % of decisions take at most 5 % longer than with good metrics."""
    number = len(bad_metrics.FAULTS)
    report.tried(f"{TURNS:,} decisions with {number} such endpoints, alternating with healthy ones")
    healthy = Engines(tmp_path, metrics_endpoints.__file__, "--ports", str(number))
    async with running(healthy), running(Engines(tmp_path, bad_metrics.__file__)) as bad:
        scenes = [
            await launch(
                Options(
                    strategy="LeastQueue",
                    more_endpoints=engines.addresses,
                    change_config=respond_directly,
                )
            )
            for engines in (healthy, bad)
        ]
        waits: tuple[list[float], list[float]] = ([], [])
        for turn in range(TURNS):
            for which in (turn % 2, 1 - turn % 2):
                waits[which].append(await seconds_to_decision(scenes[which]))
    with_healthy, with_bad = (quantiles(each, n=100)[-1] for each in waits)
    report.lost(what=f"{with_bad * 1e3:.2f} ms; with healthy ones {with_healthy * 1e3:.2f} ms")
    assert with_bad < ALLOWED * with_healthy
