"""Attacks on the port that Envoy connects to, while another client uses it normally."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from extproc.lab.stack.processes import Process, until
from extproc.lab.stack.sidecar import FileSidecar
from tests.core.builders import TWO_ADDRESSES
from tests.e2e.forked import ForkedFileSidecar
from tests.edge.http2 import wire
from tests.extent import FULL, PATIENCE, extent
from tests.faults.http2_attacks import ATTACKS, GREETING, REQUEST, UPDATE, headers
from tests.faults.report import Report

STATIC = {"models": [{"name": "llama", "endpoints": list(TWO_ADDRESSES)}]}
SECONDS = extent(1, 10)
PAUSE_SECONDS = 0.005
MOST_P99_MS = 100
MOST_MEMORY_MB = 150


class WellBehaved:
    """A client that sends valid requests, one at a time, on one connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._stream = 1
        self.seconds: list[float] = []

    @classmethod
    async def connect(cls, address: str) -> WellBehaved:
        host, _, port = address.rpartition(":")
        client = cls(*await asyncio.open_connection(host, int(port)))
        client._writer.write(GREETING)
        await client.ask(UPDATE)
        return client

    async def ask(self, begin: bytes = b"") -> None:
        """Send a request, and wait for its decision. Raises AssertionError for any other reply."""
        began = time.monotonic()
        stream = self._stream
        self._stream += 2
        self._writer.write(headers(stream, begin + wire.block()))
        self._writer.write(wire.data(stream, REQUEST, end=True))
        reply = b""
        async with asyncio.timeout(60):
            while True:
                head = await self._reader.readexactly(9)
                payload = await self._reader.readexactly(int.from_bytes(head[:3]))
                if int.from_bytes(head[5:]) != stream:
                    continue
                if head[3] == wire.DATA:
                    reply += payload
                elif head[3] == wire.HEADERS and head[4] & 1:
                    break
        assert b"x-target-endpoint" in reply
        self.seconds.append(time.monotonic() - began)

    async def ask_for(self, seconds: float) -> None:
        """Send requests with pauses for so many seconds, and at least fifty."""
        end = time.monotonic() + seconds
        while time.monotonic() < end or len(self.seconds) < 50:
            await self.ask()
            await asyncio.sleep(PAUSE_SECONDS)

    def p99_ms(self) -> float:
        return sorted(self.seconds)[int(len(self.seconds) * 0.99)] * 1e3

    def close(self) -> None:
        self._writer.close()


async def largest_memory(sidecar: FileSidecar, until_done: asyncio.Task[None]) -> float:
    """Return the largest memory of the sidecar, in megabytes, until the task is done."""
    most = 0
    while not until_done.done():
        most = max(most, sidecar.resident_bytes())
        await asyncio.sleep(0.02)
    return most / 1e6


@pytest.fixture
async def sidecar(tmp_path: Path) -> AsyncIterator[FileSidecar]:
    # A fork starts sooner, but its memory includes the modules of the stand-ins.
    make = FileSidecar if FULL else ForkedFileSidecar
    sidecar = make(STATIC, tmp_path)
    await sidecar.start()
    yield sidecar
    await sidecar.kill()


@pytest.mark.parametrize("attack", ATTACKS)
async def test_attack(attack: str, sidecar: FileSidecar, report: Report, tmp_path: Path) -> None:
    """Another client gets 99 % of its replies within 100 ms, and memory stays below 150 MB."""
    name = (ATTACKS[attack].__doc__ or "").rstrip(".")
    report.tried(f"{name[0].lower()}{name[1:]}, for {SECONDS} s on one connection after the other")
    client = await WellBehaved.connect(sidecar.listen)
    client.seconds.clear()
    port = sidecar.listen.rpartition(":")[2]
    command = [sys.executable, "-m", "tests.faults.http2_attacks", attack, port]
    attacker = Process("attacker", command, tmp_path)
    attacker.spawn()
    try:
        await until(lambda: bool(attacker.stdout.read_text()), PATIENCE, "the attacker to begin")
        asking = asyncio.create_task(client.ask_for(SECONDS))
        memory = await largest_memory(sidecar, asking)
        await asking
        assert attacker.returncode() is None, attacker.error_output()
    finally:
        await attacker.kill()
    client.close()
    report.lost(f"p99 {client.p99_ms():.1f} ms of {len(client.seconds)} requests; {memory:.0f} MB")
    assert "Traceback" not in sidecar.error_output()
    await until(sidecar.is_ready, PATIENCE, "the admin port to respond")
    if FULL:
        assert client.p99_ms() < MOST_P99_MS
        assert memory < MOST_MEMORY_MB
