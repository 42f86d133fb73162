"""The load generator: a closed loop in its own process, which writes JSON to a file.

Each connection sends its next request after the previous response. After the given seconds it sends
nothing more and waits for open requests. So every request whose cost was measured also counts. wrk
leaves these out, although with large bodies and many connections they are a large part. The
captions of the tables show that this generator uses little of a core.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from time import perf_counter, process_time
from typing import cast

from extproc.lab.bench.wire import PREFIXES, Reader, body, request, run
from extproc.lab.load import limits

_PATIENCE_SECONDS = 30
"""Time limit for the last responses."""


class _Connection(asyncio.Protocol):
    def __init__(self, load: _Load, position: int) -> None:
        self._load = load
        self._position = position
        self._reader = Reader()
        self._transport: asyncio.Transport | None = None
        self._sent = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transport is one without being a subclass.
        self._transport = cast("asyncio.Transport", transport)

    def send(self) -> None:
        """Send the next request, or close the connection at the end."""
        assert self._transport is not None
        if self._transport.is_closing():
            return  # so that `connection_lost` sees it
        requests = self._load.requests
        self._position += 1
        self._sent = perf_counter()
        self._transport.write(requests[self._position % len(requests)])

    def data_received(self, data: bytes) -> None:
        if not self._reader.feed(data):
            return
        now = perf_counter()
        if self._load.answered(self._reader.head, now - self._sent, now):
            self.send()
        else:
            self._load.ended()

    def connection_lost(self, exc: Exception | None) -> None:
        self._load.lost()


class _Load:
    """The requested load and its result."""

    def __init__(self, requests: Sequence[bytes], connections: int) -> None:
        self.requests = requests
        self.latencies: list[float] = []
        self.failed = 0
        self.over = asyncio.Event()
        self._until = 0.0
        self._running = connections

    def answered(self, head: bytes, seconds: float, now: float) -> bool:
        """Count a response. Return True if the connection should continue."""
        self.latencies.append(seconds)
        if not head.startswith(b"HTTP/1.1 200"):
            self.failed += 1
        return now < self._until

    def ended(self) -> None:
        """Count a connection that ended after its last response."""
        self._running -= 1
        if not self._running:
            self.over.set()

    def lost(self) -> None:
        """Count a connection that ended early: its request failed, and it sends no more."""
        if not self.over.is_set():
            self.failed += 1
            self.ended()

    async def run(self, port: int, seconds: float) -> float:
        """Generate the load. Return the seconds until the last response."""
        loop = asyncio.get_running_loop()
        opened = []
        for number in range(self._running):
            # Neighbors start with different prefixes.
            begin = partial(_Connection, self, number)
            _, connection = await loop.create_connection(begin, "127.0.0.1", port)
            opened.append(connection)
        started = perf_counter()
        self._until = started + seconds
        for connection in opened:
            connection.send()
        try:
            await asyncio.wait_for(self.over.wait(), seconds + _PATIENCE_SECONDS)
        except TimeoutError:
            self.failed += self._running
            self.over.set()
        return perf_counter() - started


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m extproc.lab.bench.client")
    parser.add_argument("figures", type=Path)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--size", type=int, required=True, help="bytes of each body")
    parser.add_argument("--connections", type=int, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    asked = parser.parse_args(arguments)
    limits.raise_file_limit()
    requests = [request(body(asked.size, key)) for key in range(PREFIXES)]
    load = _Load(requests, asked.connections)

    async def drive() -> tuple[float, float]:
        began = process_time()
        seconds = await load.run(asked.port, asked.seconds)
        return seconds, process_time() - began

    seconds, cpu_seconds = run(drive())
    found = {
        "latencies": load.latencies,
        "failed": load.failed,
        "seconds": seconds,
        "cpu_seconds": cpu_seconds,
    }
    asked.figures.write_text(json.dumps(found))


if __name__ == "__main__":
    main()
