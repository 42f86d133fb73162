"""The upstreams: several ports of one process, which respond at once or stream slowly.

They stand for vLLM engines. Streams stop after their first chunk until the requested number is
open, however long that takes. Then all send their next chunk at the same tick, so thousands of them
need one timer.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Callable, Sequence
from time import monotonic
from typing import cast

from extproc.lab.bench.wire import MODEL, Reader, run
from extproc.lab.load import limits

UPSTREAMS = 8

_PATIENCE_SECONDS = 5
"""Time to wait for one more stream of those that should be open at once."""

_ANSWER = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}"
_STREAM = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
)


def _event(text: str) -> bytes:
    """Return a server-sent event as a chunk of a body."""
    data = f"data: {text}\n\n".encode()
    return b"%x\r\n%s\r\n" % (len(data), data)


CHUNK = _event(
    json.dumps(
        {
            "id": "chatcmpl-0123456789abcdef0123456789abcdef",
            "object": "chat.completion.chunk",
            "created": 1_700_000_000,
            "model": MODEL,
            "choices": [{"index": 0, "delta": {"content": " word"}, "finish_reason": None}],
        }
    )
)
_LAST = _event("[DONE]") + b"0\r\n\r\n"


class _Upstream(asyncio.Protocol):
    """One connection. Its owner decides how to respond."""

    def __init__(self, answer: Callable[[_Upstream], None]) -> None:
        self._answer = answer
        self._reader = Reader()
        self._transport: asyncio.Transport | None = None
        self.chunks_left = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transport is one without being a subclass.
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        if self._reader.feed(data):
            # Health checks and requests for the model list are never streams.
            if self._reader.head.startswith(b"GET"):
                self.write(_ANSWER)
            else:
                self._answer(self)

    @property
    def is_open(self) -> bool:
        """True if the connection is still open."""
        return self._transport is not None and not self._transport.is_closing()

    def write(self, data: bytes) -> None:
        """Write to the connection."""
        assert self._transport is not None
        self._transport.write(data)


class _Streams:
    """Open responses."""

    def __init__(self, chunks: int, interval: float, together: int) -> None:
        self._chunks = chunks
        self._interval = interval
        self._together = together
        self._open: list[_Upstream] = []
        self._last_begun = 0.0

    def begin(self, upstream: _Upstream) -> None:
        """Add a response."""
        upstream.chunks_left = self._chunks
        upstream.write(_STREAM + CHUNK)
        upstream.chunks_left -= 1
        self._open.append(upstream)
        self._last_begun = monotonic()

    async def _gather(self) -> None:
        """Wait until all are open, or no more arrive."""
        while len(self._open) < self._together:
            if self._open and monotonic() - self._last_begun > _PATIENCE_SECONDS:
                return
            await asyncio.sleep(0.05)

    async def tick(self) -> None:
        """Send each response's next chunk on time, endlessly."""
        await self._gather()
        loop = asyncio.get_running_loop()
        due = loop.time()
        while True:
            due = max(due + self._interval, loop.time())
            await asyncio.sleep(due - loop.time())
            self._open = [one for one in self._open if self._goes_on(one)]

    def _goes_on(self, one: _Upstream) -> bool:
        if not one.is_open:
            return False
        one.write(CHUNK if one.chunks_left else _LAST)
        one.chunks_left -= 1
        return one.chunks_left >= 0


def _at_once(upstream: _Upstream) -> None:
    upstream.write(_ANSWER)


async def serve(ports: int, streams: _Streams | None) -> None:
    """Serve on free ports, which it prints, until killed."""
    answer = streams.begin if streams else _at_once
    loop = asyncio.get_running_loop()
    servers = [
        await loop.create_server(lambda: _Upstream(answer), "127.0.0.1", 0, backlog=4096)
        for _ in range(ports)
    ]
    print(json.dumps([server.sockets[0].getsockname()[1] for server in servers]), flush=True)
    await (streams.tick() if streams else asyncio.Event().wait())


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m extproc.lab.bench.upstream")
    parser.add_argument("--ports", type=int, default=UPSTREAMS)
    parser.add_argument(
        "--chunks", type=int, default=0, help="chunks of each response; 0: do not stream"
    )
    parser.add_argument("--interval", type=float, default=0.1, help="seconds between two chunks")
    parser.add_argument("--together", type=int, default=1, help="streams that wait for each other")
    parsed = parser.parse_args(arguments)
    limits.raise_file_limit()
    streams = _Streams(parsed.chunks, parsed.interval, parsed.together)
    run(serve(parsed.ports, streams if parsed.chunks else None))


if __name__ == "__main__":
    main()
