"""What reading endpoints' signals costs those who wait for a decision; part of `make bench`.

Requests come one by one from another process at random times, as they do in life: a
decision is late if it has to wait for something else in the event loop. The same
requests are decided while nobody is asked for signals, and while 200 endpoints are that
answer well, hang, or send 100 MB.

Neighbours on the same cores delay decisions more than any of that. So percentiles are
taken of many short times, and the one in the middle counts.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import socket
import struct
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from statistics import fmean, median
from tempfile import TemporaryDirectory
from time import monotonic, perf_counter, process_time, sleep
from typing import Any

from rich.table import Table

from extproc.adapters.vllm.scraper import Scraper
from extproc.core.catalog import Catalog, revise
from extproc.core.conversation import Conversation
from extproc.core.ledger import Ledger
from extproc.core.router import Router
from extproc.core.signals import Signals
from extproc.core.spec import ModelsSpec
from extproc.core.strategies import build
from extproc.edge.codec import decode, encode
from extproc.lab.processes import Process, until
from extproc.lab.stand_in_endpoints import Manner

ENDPOINTS = 200
MODEL = "llama"

# By then those that fail are asked seldom, and those that send too much for a while not at all.
SETTLE_SECONDS = 10.0
_WINDOWS = 20

_REQUESTS_PER_SECOND = 1000.0
_STAMP = struct.Struct("d")

Messages = Sequence[tuple[bytes, bytes]]
"""Of each request the headers and the body, as Envoy sends them."""


@dataclass
class Way:
    """One kind of fleet beside the decisions, and what came of them."""

    name: str
    manner: Manner
    strategy: str
    latencies: list[float] = field(default_factory=list)
    """Seconds from a request's sending to its answer, in the order of the answers."""
    failed: int = 0
    cpu_seconds: float = 0.0
    seconds: float = 0.0
    readings: Counter[str] = field(default_factory=Counter)

    def signal_read(self, path: str, result: str) -> None:
        """Counts a reading."""
        self.readings[result] += 1

    def percentile_us(self, percent: float) -> float:
        """Of the latencies, in microseconds."""
        size = max(len(self.latencies) // _WINDOWS, 1)
        windows = (self.latencies[i : i + size] for i in range(0, len(self.latencies), size))
        return median(sorted(w)[int(len(w) * percent / 100)] for w in windows) * 1e6

    @property
    def cpu_percent(self) -> float:
        """Of one core."""
        return 100 * self.cpu_seconds / self.seconds

    def document(self, addresses: Sequence[str], served_by: Sequence[str]) -> dict[str, Any]:
        """The models: one that requests call, and the fleet beside it."""
        fleet = {"strategy": self.strategy}
        return {
            "models": [
                {"name": MODEL, "endpoints": list(served_by)},
                {"name": "fleet", "endpoints": list(addresses), "loadBalancing": fleet},
            ]
        }


def ways() -> list[Way]:
    """Those that are compared, each between two without any reading: by as much as those differ
    among themselves, any two do.
    """
    found = [_alone()]
    for name, manner in (
        ("answer", Manner.HEALTHY),
        ("hang", Manner.HANG),
        ("send 100 MB", Manner.FLOOD),
    ):
        found += [Way(f"{ENDPOINTS} {name}", manner, "LeastQueue"), _alone()]
    return found


def _alone() -> Way:
    return Way("nobody is asked", Manner.HEALTHY, "PrefixHash")


async def measure(messages: Messages, seconds: float) -> list[Way]:
    """Decisions in this process; each way for so many seconds."""
    measured = ways()
    # What cannot be read is told to nobody here.
    logging.getLogger("extproc.signals").setLevel(logging.ERROR)
    async with AsyncExitStack() as cleanup:
        directory = Path(cleanup.enter_context(TemporaryDirectory(prefix="extproc-bench-")))
        fleets = await fleets_of(directory, cleanup)
        receiving = cleanup.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        receiving.bind(("127.0.0.1", 0))
        receiving.setblocking(False)
        port = str(receiving.getsockname()[1])
        _spawn("bench_signals", ["--send-to", port], "sender", directory, cleanup)
        async with asyncio.timeout(20):
            await asyncio.get_running_loop().sock_recv(receiving, _STAMP.size)
        for way in measured:
            await _run(way, fleets[way.manner], messages, receiving, seconds)
    return measured


async def fleets_of(directory: Path, cleanup: AsyncExitStack) -> Mapping[Manner, list[str]]:
    """Addresses of stand-in endpoints of each manner, each fleet in a process of its own."""
    found = {}
    for manner in Manner:
        arguments = ["--ports", str(ENDPOINTS), "--manner", manner]
        process = _spawn("stand_in_endpoints", arguments, manner, directory, cleanup)
        await until(partial(_has_printed, process), 20, f"{manner} endpoints")
        found[manner] = [f"127.0.0.1:{port}" for port in json.loads(process.stdout.read_text())]
    return found


def _has_printed(process: Process) -> bool:
    return process.stdout.read_text().endswith("\n")


def _spawn(
    module: str, arguments: Sequence[str], name: str, directory: Path, cleanup: AsyncExitStack
) -> Process:
    command = [sys.executable, "-m", f"extproc.lab.{module}", *arguments]
    process = Process(name, command, directory)
    cleanup.push_async_callback(process.stop)
    process.spawn()
    return process


async def _run(
    way: Way,
    addresses: Sequence[str],
    messages: Messages,
    receiving: socket.socket,
    seconds: float,
) -> None:
    rng, ledger = Random(1), Ledger()
    router = Router(ledger, signals=Signals(monotonic, ledger), rng=rng)
    scraper = Scraper(router, way, rng)
    router.follow(scraper.follow)
    served_by = [f"10.0.0.{i + 1}:8000" for i in range(8)]
    spec = ModelsSpec.model_validate(way.document(addresses, served_by))
    router.publish(revise(Catalog(), spec.models, lambda one: build(one, rng, router.signals)))
    await asyncio.sleep(min(SETTLE_SECONDS, seconds))
    decide = _decider(router, messages, rng)
    _drain(receiving)
    way.readings.clear()
    began, cpu = perf_counter(), process_time()
    loop = asyncio.get_running_loop()
    loop.add_reader(receiving, lambda: _answer(receiving, decide, way.latencies))
    await asyncio.sleep(seconds)
    loop.remove_reader(receiving)
    way.seconds, way.cpu_seconds = perf_counter() - began, process_time() - cpu
    await scraper.close()


def _decider(router: Router, messages: Messages, rng: Random) -> Callable[[], None]:
    under_way = [Conversation(router, rng) for _ in range(32)]

    def decide() -> None:
        conversation = Conversation(router, rng)
        for message in messages[rng.randrange(len(messages))]:
            for answer in conversation.receive(decode(message)):
                encode(answer)
        under_way.append(conversation)
        under_way.pop(0).close()

    return decide


def _answer(receiving: socket.socket, decide: Callable[[], None], latencies: list[float]) -> None:
    """One request for each call, so that others have their turn between two, as with gRPC."""
    (sent,) = _STAMP.unpack(receiving.recv(_STAMP.size))
    decide()
    latencies.append(perf_counter() - sent)


def _drain(receiving: socket.socket) -> None:
    try:
        while receiving.recv(_STAMP.size):
            pass
    except BlockingIOError:
        return


def table(title: str, measured: Sequence[Way]) -> Table:
    """The ways with their ratios to those beside them, where nobody is asked."""
    rows = Table(title=title)
    rows.add_column("endpoints")
    for column in ("decisions", "p50 us", "ratio", "p99 us", "ratio", "CPU %"):
        rows.add_column(column, justify="right")
    rows.add_column("readings per second")
    for position, way in enumerate(measured):
        beside = (
            measured[max(position - 1, 0) : position + 2 : 2] if position % 2 else measured[::2]
        )
        p50, p99 = way.percentile_us(50), way.percentile_us(99)
        readings = (f"{n / way.seconds:.1f} {result}" for result, n in way.readings.items())
        rows.add_row(
            way.name,
            f"{len(way.latencies):,}",
            f"{p50:.0f}",
            f"{p50 / fmean(one.percentile_us(50) for one in beside):.2f}",
            f"{p99:.0f}",
            f"{p99 / fmean(one.percentile_us(99) for one in beside):.2f}",
            f"{way.cpu_percent:.1f}",
            ", ".join(readings) or "-",
        )
    return rows


def send(port: int, per_second: float) -> None:
    """Sends the time of sending to a port, at random times, until killed."""
    rng = Random(1)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sending:
        while True:
            sleep(rng.expovariate(per_second))
            # The clock is the same for all processes of a machine.
            sending.sendto(_STAMP.pack(perf_counter()), ("127.0.0.1", port))


def main(arguments: Sequence[str] | None = None) -> None:
    """The sender's command line."""
    parser = argparse.ArgumentParser(prog="python -m extproc.lab.bench_signals")
    parser.add_argument("--send-to", type=int, required=True, help="port")
    send(parser.parse_args(arguments).send_to, _REQUESTS_PER_SECOND)


if __name__ == "__main__":
    main()
