"""A process that holds many streams open at once.

It prints a line of JSON when all are open, and another when all have ended.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Sequence
from functools import partial
from time import perf_counter
from typing import cast

from extproc.lab.bench.wire import PREFIXES, Reader, body, request, run
from extproc.lab.load import limits

SIZE = 1_000
"""Bytes of each request's body."""

_WAITING = 256
"""Most requests without a first chunk: a burst of all of them would measure queues."""

_PATIENCE_SECONDS = 300


class _Stream(asyncio.Protocol):
    """A connection with one request."""

    def __init__(self, streams: _Streams, asked: bytes) -> None:
        self._streams = streams
        self._asked = asked
        self._reader = Reader()
        self._begun = self._ended = False
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transport is one without being a subclass.
        self._transport = cast("asyncio.Transport", transport)
        self._transport.write(self._asked)

    def data_received(self, data: bytes) -> None:
        ended = self._reader.feed(data)
        if not self._begun:
            self._begun = True
            self._streams.begun(self._reader.head.startswith(b"HTTP/1.1 200"))
        if ended:
            self._end(whole=True)
            assert self._transport is not None
            self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._begun:
            self._begun = True
            self._streams.begun(False)
        self._end(whole=False)

    def _end(self, whole: bool) -> None:
        if not self._ended:
            self._ended = True
            self._streams.ended(whole)


class _Streams:
    """Counts of open and ended streams."""

    def __init__(self, number: int) -> None:
        self.at_once = 0
        self.whole = 0
        self.refused = 0
        self.waiting = asyncio.Semaphore(_WAITING)
        self.all_begun = asyncio.Event()
        self.all_ended = asyncio.Event()
        self._to_begin = self._to_end = number
        self._open = 0

    def begun(self, accepted: bool) -> None:
        """Note that a response has begun, or that its connection was lost."""
        self.waiting.release()
        self.refused += not accepted
        self._open += 1
        self.at_once = max(self.at_once, self._open)
        self._to_begin -= 1
        if not self._to_begin:
            self.all_begun.set()

    def ended(self, whole: bool) -> None:
        """Note that a response has ended, or that its connection was lost."""
        self.whole += whole
        self._open -= 1
        self._to_end -= 1
        if not self._to_end:
            self.all_ended.set()


async def hold(port: int, number: int) -> None:
    """Open the streams and wait for their ends."""
    streams = _Streams(number)
    requests = [request(body(SIZE, key, stream=True)) for key in range(PREFIXES)]
    loop = asyncio.get_running_loop()
    started = perf_counter()
    for position in range(number):
        await streams.waiting.acquire()
        begin = partial(_Stream, streams, requests[position % PREFIXES])
        await loop.create_connection(begin, "127.0.0.1", port)
    async with asyncio.timeout(_PATIENCE_SECONDS):
        await streams.all_begun.wait()
        _say(at_once=streams.at_once, seconds=perf_counter() - started)
        await streams.all_ended.wait()
    failed = number - streams.whole + streams.refused
    _say(failed=min(failed, number), seconds=perf_counter() - started)


def _say(**figures: float) -> None:
    print(json.dumps(figures), flush=True)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m extproc.lab.bench.sse_client")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--streams", type=int, required=True)
    asked = parser.parse_args(arguments)
    limits.raise_file_limit()
    run(hold(asked.port, asked.streams))


if __name__ == "__main__":
    main()
