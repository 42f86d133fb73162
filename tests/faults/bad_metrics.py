"""Engines with bad metrics, each with another fault.

`python -m tests.faults.bad_metrics` serves one of each, and prints their ports as JSON.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import re
from collections.abc import Awaitable, Callable
from contextlib import suppress

Write = Callable[[asyncio.StreamWriter], Awaitable[None]]


def respond(body: bytes, status: str = "200 OK", headers: str = "") -> Write:
    """Return a writer of a response with this body."""
    head = f"HTTP/1.1 {status}\r\ncontent-length: {len(body)}\r\n{headers}\r\n".encode()

    async def write(writer: asyncio.StreamWriter) -> None:
        writer.write(head + body)
        await writer.drain()

    return write


def respond_values(waiting: str, usage: str) -> Write:
    """Return a writer of metrics with these values."""
    text = (
        f"vllm:num_requests_waiting {waiting}\nvllm:num_requests_running {waiting}\n"
        f"vllm:kv_cache_usage_perc {usage}\nvllm:gpu_cache_usage_perc {usage}\n"
    )
    return respond(text.encode())


async def hang(_: asyncio.StreamWriter) -> None:
    """Never respond."""
    await asyncio.Event().wait()


async def send_comments(writer: asyncio.StreamWriter) -> None:
    """Send a hundred megabytes of comments."""
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 104857600\r\n\r\n")
    for _ in range(1_600):
        writer.write(b"# nothing\n" * 6_554)
        await writer.drain()


FAULTS: dict[str, Write] = {
    "hang": hang,
    "100 MB": send_comments,
    "NaN": respond_values("NaN", "NaN"),
    "negative": respond_values("-5", "-1"),
    "infinite": respond_values("+Inf", "1e308"),
    "HTML": respond(b"<html><body>It works!</body></html>"),
    "gzip bomb": respond(gzip.compress(b"\0" * 2**24), headers="content-encoding: gzip\r\n"),
    "redirect": respond(b"", "302 Found", "location: http://169.254.169.254/latest\r\n"),
    "garbage": respond(bytes(range(256)) * 40),
}


class Engine:
    """An engine with bad metrics that passes all other requests on to a healthy engine."""

    def __init__(self, write: Write) -> None:
        self.upstream = ""
        """IP:PORT of the healthy engine."""
        self._write = write

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            while (head := await reader.readuntil(b"\r\n\r\n")).startswith(b"GET "):
                await self._write(writer)
            await self._pass_on(head + await _body(head, reader), writer)
        writer.close()

    async def _pass_on(self, request: bytes, writer: asyncio.StreamWriter) -> None:
        host, _, port = self.upstream.rpartition(":")
        from_upstream, to_upstream = await asyncio.open_connection(host, int(port))
        to_upstream.write(request.replace(b"\r\n", b"\r\nconnection: close\r\n", 1))
        while piece := await from_upstream.read(65_536):
            writer.write(piece)
            await writer.drain()
        to_upstream.close()


async def _body(head: bytes, reader: asyncio.StreamReader) -> bytes:
    if b"chunked" in head:
        return await reader.readuntil(b"0\r\n\r\n")
    length = re.search(rb"content-length: (\d+)", head)
    return await reader.readexactly(int(length[1])) if length else b""


async def main() -> None:
    """Serve one engine of each kind until killed."""
    servers = [
        await asyncio.start_server(Engine(write).serve, "127.0.0.1", 0) for write in FAULTS.values()
    ]
    print(json.dumps([server.sockets[0].getsockname()[1] for server in servers]), flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
