"""The generator and the upstreams, connected directly."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path

from extproc.lab.bench.load import drive
from extproc.lab.bench.sse import CHUNKS, Crowd, measure
from extproc.lab.bench.ways import Running, Way, start_upstreams
from extproc.lab.stack.processes import Process


async def test_every_connection_gets_responses(tmp_path: Path) -> None:
    async with AsyncExitStack() as cleanup:
        _, upstreams = await start_upstreams(tmp_path, cleanup)
        port = int(upstreams[0].rpartition(":")[2])
        load = await drive(port, 100_000, 8, 0.1)
        assert len(load.latencies) > 8
        assert not load.failed
        assert 0 < load.percentile_ms(50) <= load.percentile_ms(99)


async def test_figures_beyond_a_pipes_capacity_arrive_whole(tmp_path: Path) -> None:
    async with AsyncExitStack() as cleanup:
        _, upstreams = await start_upstreams(tmp_path, cleanup)
        load = await drive(int(upstreams[0].rpartition(":")[2]), 100, 16, 2.0)
    assert len(load.latencies) > 16
    assert not load.failed


async def test_unexpected_responses_count_as_failures(tmp_path: Path) -> None:
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n")

    async with await asyncio.start_server(refuse, "127.0.0.1", 0) as server:
        load = await drive(server.sockets[0].getsockname()[1], 1_000, 1, 0.0)
    assert (len(load.latencies), load.failed) == (1, 1)


async def test_closed_connections_count_as_failures() -> None:
    async with await asyncio.start_server(
        lambda reader, writer: writer.close(), "127.0.0.1", 0
    ) as server:
        load = await drive(server.sockets[0].getsockname()[1], 1_000, 3, 0.1)
    assert (len(load.latencies), load.failed) == (0, 3)


async def test_streams_are_open_together_and_end_whole(tmp_path: Path) -> None:
    async def start(upstreams: Sequence[str], directory: Path, cleanup: AsyncExitStack) -> Running:
        bystander = Process("bystander", ["sleep", "60"], directory)
        cleanup.push_async_callback(bystander.stop)
        bystander.spawn()
        return Running(int(upstreams[0].rpartition(":")[2]), bystander)

    (held,) = await measure([Way("w", "", start)], [Crowd(300, 0.01)], tmp_path, lambda: None)
    assert (held.at_once, held.failed) == (300, 0)
    assert held.seconds > (CHUNKS - 1) * 0.01
