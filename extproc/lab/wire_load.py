"""A closed-loop HTTP/1.1 load and an upstream that answers at once, both cheap.

For benchmarks only: they speak just enough HTTP to keep the machine's cores free
for what is measured.
"""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Sequence
from functools import partial
from time import perf_counter

_LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)
# A load without any answer for so long counts as failed.
_PATIENCE_SECONDS = 10
_ANSWER = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}"


class _Messages(asyncio.Protocol):
    """Splits a connection's bytes into messages, of which only one is under way at a time."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        end = self._buffer.find(b"\r\n\r\n")
        if end >= 0 and self._complete(end):
            head = bytes(self._buffer[:end])
            self._buffer.clear()
            self.message(head)

    def _complete(self, end: int) -> bool:
        # Bodies that Envoy shows to a filter in part go on in chunks.
        if self._buffer.find(b"transfer-encoding: chunked", 0, end) >= 0:
            return self._buffer.endswith(b"\r\n0\r\n\r\n")
        length = _LENGTH.search(self._buffer, 0, end)
        return len(self._buffer) >= end + 4 + (int(length[1]) if length else 0)

    def message(self, head: bytes) -> None:
        """A whole message has come; this is its head."""

    def write(self, data: bytes) -> None:
        assert self._transport is not None
        self._transport.write(data)


class _Upstream(_Messages):
    def message(self, head: bytes) -> None:
        self.write(_ANSWER)


class _Client(_Messages):
    """Sends the next request when the answer to the last is there."""

    def __init__(self, requests: Sequence[bytes], load: Load, offset: int) -> None:
        super().__init__()
        self._requests = requests
        self._load = load
        self._next = offset
        self._sent = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._send()

    def message(self, head: bytes) -> None:
        self._load.answered(head, perf_counter() - self._sent)
        if not self._load.over.is_set():
            self._send()

    def connection_lost(self, exc: Exception | None) -> None:
        self._load.lost(exc)

    def _send(self) -> None:
        self._sent = perf_counter()
        self.write(self._requests[self._next % len(self._requests)])
        self._next += 1


class Load:
    """Drives a server over some connections; collects latencies in seconds."""

    def __init__(self) -> None:
        self.latencies: list[float] = []
        self.over = asyncio.Event()
        self.failed = 0

    def answered(self, head: bytes, seconds: float) -> None:
        """Counts an answer."""
        self.latencies.append(seconds)
        if not head.startswith(b"HTTP/1.1 200"):
            self.failed += 1

    def lost(self, why: Exception | None) -> None:
        """Counts a connection that ended before the load did."""
        if not self.over.is_set():
            self.failed += 1
            self.over.set()

    async def run(
        self, port: int, requests: Sequence[bytes], connections: int, count: int
    ) -> float:
        """Sends about `count` requests over so many connections; returns the seconds taken."""
        loop = asyncio.get_running_loop()
        started = perf_counter()
        transports = []
        for number in range(connections):
            client = partial(_Client, requests, self, number)
            transport, _ = await loop.create_connection(client, "127.0.0.1", port)
            transports.append(transport)
        answered, last = 0, started
        while len(self.latencies) < count and not self.over.is_set():
            await asyncio.sleep(0.005)
            if len(self.latencies) > answered:
                answered, last = len(self.latencies), perf_counter()
            elif perf_counter() - last > _PATIENCE_SECONDS:
                self.lost(None)
        seconds = perf_counter() - started
        self.over.set()
        for transport in transports:
            transport.abort()
        return seconds


async def serve_upstream() -> None:
    """Answers everything on a port of its own choosing, which it prints, until killed."""
    server = await asyncio.get_running_loop().create_server(_Upstream, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    sys.exit(asyncio.run(serve_upstream()))
