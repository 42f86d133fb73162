"""The cost of shared state: CPU time of sidecars and of the server, and a full index.

All processes share this machine's cores, so CPU time counts, and not the requests that are
possible.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from asyncio.subprocess import PIPE, Process, create_subprocess_exec
from contextlib import AsyncExitStack
from pathlib import Path
from random import Random
from statistics import fmean
from time import monotonic, perf_counter, process_time

from extproc.adapters.shared_state.codec import decode_checkpoint, encode_checkpoint
from extproc.adapters.shared_state.link import INTERVAL_SECONDS
from extproc.adapters.shared_state.server import SharedStateServer
from extproc.adapters.shared_state.stream import BatchStream
from extproc.core.fleet.fleet import Fleet
from extproc.core.fleet.report import Load, Report
from extproc.core.request.blocks import BLOCK_TOKENS
from extproc.core.sharing.checkpoint import checkpoint_of, restore
from extproc.lab.bench.grid import Grid
from extproc.lab.bench.routers import random_blocks
from extproc.lab.bench.sharing_sidecar import BLOCKS
from extproc.lab.stack.sidecar import compiled_environment
from extproc.lab.stack.valkey import Valkey

SIDECARS = 5
REQUESTS = 1_000
"""Requests per second of all sidecars together."""

LOADS = ((2, 1_000), (5, 1_000), (10, 1_000), (20, 1_000), (5, 5_000), (10, 5_000))
"""Sidecars and requests per second, whose batches the server carries."""

_REQUEST_BYTES = 310
"""Bytes of a request with 32 blocks in a batch, as measured."""

_ENDPOINTS = 200
_RUN_BLOCKS = 256


async def measure(
    directory: Path, seconds: float, blocks: int, sidecars: int = SIDECARS
) -> dict[str, Grid]:
    """Measure for this number of seconds in each row, and an index of this number of blocks."""
    async with AsyncExitStack() as cleanup:
        server = Valkey(directory)
        cleanup.push_async_callback(server.stop)
        await server.start()
        return {
            "sharing": await _sidecars(server, seconds, sidecars),
            "shared_server": await _carried(server, seconds),
            "shared_index": _index(blocks),
        }


async def _sidecars(server: Valkey, seconds: float, sidecars: int) -> Grid:
    rows = []
    for name, url in (("nothing", ""), ("their state", server.url)):
        before, began = server.cpu_seconds(), monotonic()
        started = [await _start(url, seconds, REQUESTS / sidecars) for _ in range(sidecars)]
        found = [json.loads((await one.communicate())[0]) for one in started]
        spent = (server.cpu_seconds() - before) / (monotonic() - began)
        requests = sum(one["requests"] for one in found)
        cpu = fmean(one["cpu"] for one in found) / seconds
        rows.append(
            [
                name,
                f"{1e3 * cpu:.0f}",
                f"{1e6 * cpu / REQUESTS:.0f}",
                f"{sum(one['bytes'] for one in found) / requests:.0f}",
                f"{1e3 * spent:.0f}",
            ]
        )
    title = (
        f"{sidecars} sidecars with {REQUESTS:,} requests/s in all, {BLOCKS} blocks each, that share"
    )
    headings = ["", "CPU ms/s, a sidecar", "us per request of all", "bytes per request"]
    return Grid(title, [*headings, "CPU ms/s, server"], rows)


async def _start(url: str, seconds: float, rate: float) -> Process:
    command = ["-m", "extproc.lab.bench.sharing_sidecar", "--url", url]
    command += ["--rate", str(rate), "--seconds", str(seconds)]
    environment = {**os.environ, **compiled_environment()}
    return await create_subprocess_exec(sys.executable, *command, stdout=PIPE, env=environment)


async def _carried(server: Valkey, seconds: float) -> Grid:
    """Measure the server under exchanges of batches whose contents are not read."""
    rows = []
    for number, (sidecars, requests) in enumerate(LOADS):
        size = int(requests / sidecars * INTERVAL_SECONDS * _REQUEST_BYTES)
        before, began = server.cpu_seconds(), monotonic()
        streams = [
            _exchange(server.url, f"{number}", name, size, seconds) for name in range(sidecars)
        ]
        read = sum(await asyncio.gather(*streams))
        passed = monotonic() - began
        cpu = (server.cpu_seconds() - before) / passed
        rows.append([str(sidecars), f"{requests:,}", f"{cpu:.1%}", f"{read / passed / 1e6:.1f}"])
    title = "one server: CPU of its one core, and bytes that it sends to all sidecars"
    return Grid(title, ["sidecars", "requests/s in all", "CPU", "MB/s"], rows, left=0)


async def _exchange(url: str, key: str, name: int, size: int, seconds: float) -> int:
    """Exchange batches as a busy sidecar does, and return the bytes that were read."""
    connection = SharedStateServer(url, key).connection()
    await connection.connect()  # type: ignore[no-untyped-call]
    stream = BatchStream(connection, key, str(name), monotonic)
    await stream.begin()
    message, read = os.urandom(size), 0
    end = monotonic() + seconds
    while monotonic() < end:
        entries, _ = await stream.exchange(message)
        read += sum(len(entry.message) for entry in entries)
        await asyncio.sleep(INTERVAL_SECONDS)
    await connection.disconnect(nowait=True)
    return read


def _index(blocks: int) -> Grid:
    """Measure the checkpoints of a full index."""
    rng, fleets = Random(4), [_fleet(blocks) for _ in range(2)]
    addresses = [f"10.0.0.{number}:8000" for number in range(_ENDPOINTS)]
    full, empty = (fleet.signals for fleet in fleets)
    for number in range(max(1, blocks // _RUN_BLOCKS)):
        full.prefixes.sent(addresses[number % _ENDPOINTS], random_blocks(rng, _RUN_BLOCKS))
    began = process_time()
    messages = {a: encode_checkpoint(c) for a in addresses if (c := checkpoint_of(full, a))}
    written = process_time()
    for address, message in messages.items():
        restore(empty, address, decode_checkpoint(message))
    read = process_time()
    assert len(empty.prefixes) == len(full.prefixes)
    row = [
        f"{len(full.prefixes):,}",
        f"{sum(map(len, messages.values())) / 1e6:.1f}",
        f"{1e3 * (written - began):.0f}",
        f"{1e3 * (read - written):.0f}",
    ]
    title = f"checkpoints of a full index on {_ENDPOINTS} endpoints"
    headings = ["blocks", "MB", "CPU ms to write", "CPU ms to read and restore"]
    return Grid(title, headings, [row], left=0)


def _fleet(blocks: int) -> Fleet:
    fleet = Fleet(perf_counter)
    addresses = [f"10.0.0.{number}:8000" for number in range(_ENDPOINTS)]
    fleet.signals.set_endpoints(addresses)
    tokens = int(blocks * BLOCK_TOKENS)
    for address in addresses:
        report = Report(Load(0, 0.0), 0, block_size=16, blocks=tokens // 16 + 1, prompt_tokens=1.0)
        fleet.signals.record_scrape(address, report, 0)
    return fleet
