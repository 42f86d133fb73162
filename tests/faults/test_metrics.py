"""What engines say of themselves may be anything, and what clients name may be many things."""

from __future__ import annotations

import asyncio
import gzip
import re
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from random import Random

from tests.core.builders import model_spec
from tests.e2e.scene import MODEL, Launch, Options, chat
from tests.edge.envoy import asking, request_body, request_headers
from tests.edge.streams import Sidecar
from tests.faults.extent import extent
from tests.faults.report import Report
from tests.faults.streams import CLIENTS, PACE, WHOLE, streaming

NAMES = extent(20_000, full=100_000)
THROUGH_ENVOY = 500
GROWTH_BYTES = 32 * 2**20
BAD_SECONDS = extent(4, full=15)

Write = Callable[[asyncio.StreamWriter], Awaitable[None]]


def answer(body: bytes, status: str = "200 OK", headers: str = "") -> Write:
    """An answer of this body."""
    head = f"HTTP/1.1 {status}\r\ncontent-length: {len(body)}\r\n{headers}\r\n".encode()

    async def write(writer: asyncio.StreamWriter) -> None:
        writer.write(head + body)
        await writer.drain()

    return write


def load(waiting: str, usage: str) -> Write:
    """An exposition with such figures."""
    text = (
        f"vllm:num_requests_waiting {waiting}\nvllm:num_requests_running {waiting}\n"
        f"vllm:kv_cache_usage_perc {usage}\nvllm:gpu_cache_usage_perc {usage}\n"
    )
    return answer(text.encode())


async def hang(_: asyncio.StreamWriter) -> None:
    """Nothing is ever said."""
    await asyncio.Event().wait()


async def endless(writer: asyncio.StreamWriter) -> None:
    """A hundred megabytes that say nothing."""
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 104857600\r\n\r\n")
    for _ in range(1_600):
        writer.write(b"# nothing\n" * 6_554)
        await writer.drain()


FAULTS: dict[str, Write] = {
    "hang": hang,
    "100 MB": endless,
    "NaN": load("NaN", "NaN"),
    "negative": load("-5", "-1"),
    "infinite": load("+Inf", "1e308"),
    "HTML": answer(b"<html><body>It works!</body></html>"),
    "gzip bomb": answer(gzip.compress(b"\0" * 2**24), headers="content-encoding: gzip\r\n"),
    "redirect": answer(b"", "302 Found", "location: http://169.254.169.254/latest\r\n"),
    "garbage": answer(bytes(range(256)) * 40),
}


class Engine:
    """Its metrics are at fault; requests it answers as it should, by asking another."""

    def __init__(self, write: Write) -> None:
        self.behind = ""
        """IP:PORT of the one that it asks."""
        self._write = write

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            while (head := await reader.readuntil(b"\r\n\r\n")).startswith(b"GET "):
                await self._write(writer)
            await self._pass_on(head + await _body(head, reader), writer)
        writer.close()

    async def _pass_on(self, request: bytes, writer: asyncio.StreamWriter) -> None:
        host, _, port = self.behind.rpartition(":")
        answer, to_other = await asyncio.open_connection(host, int(port))
        to_other.write(request.replace(b"\r\n", b"\r\nconnection: close\r\n", 1))
        while piece := await answer.read(65_536):
            writer.write(piece)
            await writer.drain()
        to_other.close()


async def _body(head: bytes, reader: asyncio.StreamReader) -> bytes:
    if b"chunked" in head:
        return await reader.readuntil(b"0\r\n\r\n")
    length = re.search(rb"content-length: (\d+)", head)
    return await reader.readexactly(int(length[1])) if length else b""


async def test_bad_metrics(launch: Launch, report: Report) -> None:
    """Such endpoints count as ones that say nothing: no request fails, and memory is bounded."""
    report.tried(
        f"{len(FAULTS)} endpoints, each at fault in its way ({', '.join(FAULTS)}), for "
        f"{BAD_SECONDS} s under {CLIENTS} streams"
    )
    async with AsyncExitStack() as cleanup:
        addresses: dict[str, str] = {}
        engines = []
        for name, write in FAULTS.items():
            engines.append(engine := Engine(write))
            server = await asyncio.start_server(engine.serve, "127.0.0.1", 0)
            cleanup.callback(server.close)
            addresses[f"127.0.0.1:{server.sockets[0].getsockname()[1]}"] = name
        scene = await launch(
            Options(strategy="LeastQueue", more_endpoints=[*addresses], replica_arguments=PACE)
        )
        for number, engine in enumerate(engines):
            engine.behind = scene.replicas.addresses[number % len(scene.replicas.addresses)]
        before = scene.sidecar.resident_bytes()
        async with streaming(scene) as streams:
            await asyncio.sleep(BAD_SECONDS)
            grown = scene.sidecar.resident_bytes() - before
            endpoints = (await scene.sidecar.state())[MODEL]["endpoints"]
        believed = {
            addresses[e["address"]]: e["signals"]
            for e in endpoints
            if e["address"] in addresses and e["signals"] is not None
        }
    report.lost(
        failed=streams.failed,
        cut=streams.cut,
        what=f"of {streams.whole} streams; memory grew by {grown / 2**20:.0f} MiB; believed: "
        f"{', '.join(believed) or 'none'}",
    )
    served = {line["endpoint"] for line in await scene.access_log(streams.whole)}
    assert streams.outcomes.keys() == {WHOLE}
    assert served >= {*scene.replicas.addresses}
    for name, signals in believed.items():
        assert 0 <= signals["waiting"] < 1e9, name
        assert 0 <= signals["kv_usage"] <= 1, name
    well = [e for e in endpoints if e["address"] in scene.replicas.addresses]
    assert all(e["signals"] for e in well)
    assert grown < GROWTH_BYTES
    assert "Traceback" not in scene.sidecar.complaint()


def series(exposition: str) -> set[str]:
    """The names and labels of all samples."""
    return {line.rpartition(" ")[0] for line in exposition.splitlines() if line[:1] != "#"}


def test_metrics_cardinality_100k(report: Report) -> None:
    """Models, adapters and paths that nobody knows make no series."""
    report.tried(f"{NAMES:,} requests, each with a model, adapter, path and header of its own")
    sidecar = Sidecar(model_spec("llama", adapters=["sql"]))

    def request(name: str) -> None:
        sidecar.serve(request_headers(), request_body(asking(name)))

    def exposed() -> set[str]:
        return series(sidecar.telemetry.exposition().decode())

    rng = Random(0)
    request("llama")
    request("nobody")
    sidecar.serve(request_headers("/nowhere"))
    before = exposed()
    headers = request_headers()
    for _ in range(NAMES):
        name = f"{rng.randrange(10**12)}"
        kind = rng.randrange(3)
        session = sidecar.processor.open()
        if kind == 2:
            session.receive(headers.replace(b"/v1/chat/completions", name.rjust(20, "/").encode()))
        else:
            session.receive(headers)
            model = name if kind else f"llama_{name}"
            session.receive(request_body(b'{"model": "%s"}' % model.encode()))
        session.close()
    new = exposed() - before
    report.lost(new_series=len(new))
    assert new == set()


async def test_metrics_cardinality(launch: Launch, report: Report) -> None:
    """The same through Envoy, where they are in the access log alone."""
    scene = await launch(Options(replica_arguments=PACE))
    report.tried(
        f"{THROUGH_ENVOY} models and as many paths that nobody knows, under {CLIENTS} streams"
    )

    async def exposed() -> set[str]:
        return series((await scene.sidecar.get("/metrics"))[1])

    async def ask_for(name: str) -> set[int]:
        other = await scene.send(chat("hello", model=name))
        return {other.status, (await scene.send(chat("hello"), path=f"/{name}")).status}

    async with streaming(scene) as streams:
        assert await ask_for("nobody") == {404}
        before = await exposed()
        for start in range(0, THROUGH_ENVOY, 50):
            names = (f"name-{number}" for number in range(start, start + 50))
            for statuses in await asyncio.gather(*map(ask_for, names)):
                assert statuses == {404}
        new = await exposed() - before
    report.lost(
        failed=streams.failed,
        cut=streams.cut,
        new_series=len(new),
        what=f"of {streams.whole} streams",
    )
    assert new == set()
    assert streams.outcomes.keys() == {WHOLE}
    await scene.access_log(streams.whole + 2 * THROUGH_ENVOY)
