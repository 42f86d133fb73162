"""The load generator: a closed loop in a process of its own; writes JSON to a file.

Each connection sends its next request when the answer to the last is there. After the given
seconds nothing more is sent, and what is under way is waited for: so every request whose cost
others paid is among those they are divided by. wrk leaves them out, and where bodies are
large and connections many they are a good part of all. This one is cheap enough: the captions of
the tables say what share of a core it took.
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
"""Answers that are not there by then have failed."""


class _Connection(asyncio.Protocol):
    def __init__(self, load: _Load, position: int) -> None:
        self._load = load
        self._position = position
        self._reader = Reader()
        self._transport: asyncio.Transport | None = None
        self._sent = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's is one without being a subclass.
        self._transport = cast("asyncio.Transport", transport)

    def send(self) -> None:
        """The next request; or the end, if it is time."""
        assert self._transport is not None
        if self._transport.is_closing():
            return  # which `connection_lost` tells
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
    """What is asked for, and what came of it."""

    def __init__(self, requests: Sequence[bytes], connections: int) -> None:
        self.requests = requests
        self.latencies: list[float] = []
        self.failed = 0
        self.over = asyncio.Event()
        self._until = 0.0
        self._running = connections

    def answered(self, head: bytes, seconds: float, now: float) -> bool:
        """Counts an answer; whether to go on."""
        self.latencies.append(seconds)
        if not head.startswith(b"HTTP/1.1 200"):
            self.failed += 1
        return now < self._until

    def ended(self) -> None:
        """A connection has had its last answer."""
        self._running -= 1
        if not self._running:
            self.over.set()

    def lost(self) -> None:
        """A connection ended before its time: a request failed, and no more come from here."""
        if not self.over.is_set():
            self.failed += 1
            self.ended()

    async def run(self, port: int, seconds: float) -> float:
        """Seconds until the last answer."""
        loop = asyncio.get_running_loop()
        opened = []
        for number in range(self._running):
            # Neighbours begin with different prefixes.
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
    """The command line."""
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
