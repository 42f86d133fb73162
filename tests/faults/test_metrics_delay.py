"""What bad metrics cost those who wait for a decision, beside metrics as they should be."""

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
    """A program that serves metrics on some ports, which it prints."""

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


def answered_once_decided(config: Json) -> None:
    """By Envoy itself: what an engine takes would hide what the sidecar takes."""
    (host,) = manager_of(config)["route_config"]["virtual_hosts"]
    chosen = host["routes"][0]
    assert chosen.pop("route")["cluster"] == "chosen"
    chosen["direct_response"] = {"status": 200}


async def wait(scene: Scene) -> float:
    """Seconds to a decision."""
    began = perf_counter()
    reply = await scene.send(chat("hello"))
    assert (reply.status, reply.body) == (200, b"")
    return perf_counter() - began


@pytest.mark.soak
async def test_bad_metrics_delay(launch: Launch, report: Report, tmp_path: Path) -> None:
    """Decisions beside such endpoints take at most 5 % longer than beside well ones: 99 of 100."""
    number = len(bad_metrics.FAULTS)
    report.tried(f"{TURNS:,} decisions beside {number} such endpoints, in turn with well ones")
    well = Engines(tmp_path, metrics_endpoints.__file__, "--ports", str(number))
    async with running(well), running(Engines(tmp_path, bad_metrics.__file__)) as bad:
        scenes = [
            await launch(
                Options(
                    strategy="LeastQueue",
                    more_endpoints=engines.addresses,
                    change_config=answered_once_decided,
                )
            )
            for engines in (well, bad)
        ]
        waits: tuple[list[float], list[float]] = ([], [])
        for turn in range(TURNS):
            for which in (turn % 2, 1 - turn % 2):
                waits[which].append(await wait(scenes[which]))
    theirs, ours = (quantiles(each, n=100)[-1] for each in waits)
    report.lost(what=f"{ours * 1e3:.2f} ms, {theirs * 1e3:.2f} ms beside well ones")
    assert ours < ALLOWED * theirs
