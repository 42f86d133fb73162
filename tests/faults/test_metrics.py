"""What engines say of themselves may be anything, and what clients name may be many things."""

from __future__ import annotations

import asyncio
import gzip
import re
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from functools import partial
from random import Random

from extproc.lab.processes import until
from tests.core.builders import model_spec
from tests.e2e.scene import MODEL, Launch, Options, Scene, chat
from tests.edge.envoy import asking, request_body, request_headers
from tests.edge.streams import Sidecar
from tests.faults.extent import extent
from tests.faults.report import Report
from tests.faults.streams import CLIENTS, PACE

NAMES = extent(20_000, full=100_000)
THROUGH_ENVOY = 500
GROWTH_BYTES = 32 * 2**20

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


async def _serve(write: Write, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Its metrics are at fault; requests it answers as it should."""
    port = writer.get_extra_info("sockname")[1]
    with suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            if head.startswith(b"GET "):
                await write(writer)
                continue
            if b"chunked" in head:
                await reader.readuntil(b"\r\n0\r\n\r\n")
            elif length := re.search(rb"content-length: (\d+)", head):
                await reader.readexactly(int(length[1]))
            await answer(b"{}", headers=f"x-stand-in-port: {port}\r\n")(writer)
    writer.close()


async def test_bad_metrics(launch: Launch, report: Report) -> None:
    """Such endpoints count as ones that say nothing: no request fails, and memory is bounded."""
    report.tried(f"{len(FAULTS)} endpoints, each at fault in its way: {', '.join(FAULTS)}")
    async with AsyncExitStack() as cleanup:
        addresses: dict[str, str] = {}
        for name, write in FAULTS.items():
            server = await asyncio.start_server(partial(_serve, write), "127.0.0.1", 0)
            cleanup.callback(server.close)
            addresses[f"127.0.0.1:{server.sockets[0].getsockname()[1]}"] = name
        scene = await launch(
            Options(strategy="LeastQueue", more_endpoints=[*addresses], replica_arguments=PACE)
        )
        before = scene.sidecar.resident_bytes()
        statuses, served = await ask(scene, turns=5)
        grown = scene.sidecar.resident_bytes() - before
        endpoints = (await scene.sidecar.state())[MODEL]["endpoints"]
        believed = {
            addresses[e["address"]]: e["signals"]
            for e in endpoints
            if e["address"] in addresses and e["signals"] is not None
        }
    report.lost(
        failed=statuses.total() - statuses[200],
        what=f"of {statuses.total()} requests; memory grew by {grown / 2**20:.0f} MiB; believed: "
        f"{', '.join(believed) or 'none'}",
    )
    assert statuses.keys() == {200}
    assert served.keys() >= set(scene.replicas.addresses)
    for name, signals in believed.items():
        assert 0 <= signals["waiting"] < 1e9, name
        assert 0 <= signals["kv_usage"] <= 1, name
    well = [e for e in endpoints if e["address"] in scene.replicas.addresses]
    assert all(e["signals"] for e in well)
    assert grown < GROWTH_BYTES
    assert "Traceback" not in scene.sidecar.complaint()


async def ask(scene: Scene, turns: int) -> tuple[Counter[int], Counter[str]]:
    """As many at once as there are clients, again and again while metrics are read."""
    statuses, served = Counter[int](), Counter[str]()
    for turn in range(turns):
        bodies = (chat(f"user {i}, turn {turn}") for i in range(CLIENTS))
        for reply in await asyncio.gather(*(scene.send(body) for body in bodies)):
            statuses[reply.status] += 1
            served[reply.replica] += 1
        await asyncio.sleep(1)
    return statuses, served


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
    scene = await launch(Options(replica_arguments=("--time-scale", "200")))
    report.tried(f"{THROUGH_ENVOY} models and as many paths that nobody knows")

    async def exposed() -> set[str]:
        return series((await scene.sidecar.get("/metrics"))[1])

    async def ask_for(name: str) -> set[int]:
        other = await scene.send(chat("hello", model=name))
        return {other.status, (await scene.send(chat("hello"), path=f"/{name}")).status}

    assert await ask_for("nobody") == {404}
    before = await exposed()
    for start in range(0, THROUGH_ENVOY, 50):
        names = (f"name-{number}" for number in range(start, start + 50))
        for statuses in await asyncio.gather(*map(ask_for, names)):
            assert statuses == {404}
    new = await exposed() - before
    report.lost(new_series=len(new))
    assert new == set()
    await until(lambda: len(scene.envoy.access_log()) > THROUGH_ENVOY, 5, "the access log")
