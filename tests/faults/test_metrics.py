"""Bad metrics of engines, and many unknown names in requests."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from random import Random

from tests.core.builders import model_spec
from tests.e2e.scene import MODEL, Launch, Options, chat
from tests.edge.envoy import chat_request, request_body, request_headers
from tests.edge.streams import Sidecar
from tests.extent import extent
from tests.faults.bad_metrics import FAULTS, Engine
from tests.faults.report import Report
from tests.faults.streams import CLIENTS, PACE, WHOLE, streaming

NAMES = extent(5_000, full=100_000)
THROUGH_ENVOY = extent(150, full=500)
GROWTH_BYTES = 32 * 2**20
BAD_SECONDS = extent(2, full=15)


async def test_bad_metrics(launch: Launch, report: Report) -> None:
    """Endpoints with bad metrics count as ones without: no request fails, and memory is bounded."""
    report.tried(
        f"{len(FAULTS)} endpoints, each with another fault ({', '.join(FAULTS)}), for "
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
            engine.upstream = scene.replicas.addresses[number % len(scene.replicas.addresses)]
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
    healthy = [e for e in endpoints if e["address"] in scene.replicas.addresses]
    assert all(e["signals"] for e in healthy)
    assert grown < GROWTH_BYTES
    assert "Traceback" not in scene.sidecar.error_output()


def series(exposition: str) -> set[str]:
    """Return the names and labels of all samples."""
    return {line.rpartition(" ")[0] for line in exposition.splitlines() if line[:1] != "#"}


def test_metrics_cardinality_100k(report: Report) -> None:
    """Unknown models, adapters and paths create no series."""
    report.tried(f"{NAMES:,} requests, each with its own model, adapter or path")
    sidecar = Sidecar(model_spec("llama", adapters=["sql"]))

    def request(name: str) -> None:
        sidecar.serve(request_headers(), request_body(chat_request(name)))

    def exposed() -> set[str]:
        return series(sidecar.telemetry.exposition().decode())

    rng = Random(0)
    request("llama")
    request("unknown")
    sidecar.serve(request_headers("/nowhere"))
    before = exposed()
    headers = request_headers()
    for _ in range(NAMES):
        name = f"{rng.randrange(10**12)}"
        kind = rng.randrange(3)
        session = sidecar.processor.open(lambda _: None)
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
    """The same through Envoy, where such names appear only in the access log."""
    scene = await launch(Options(replica_arguments=PACE))
    report.tried(
        f"{THROUGH_ENVOY} unknown models and {THROUGH_ENVOY} unknown paths, under {CLIENTS} streams"
    )

    async def exposed() -> set[str]:
        return series((await scene.sidecar.get("/metrics"))[1])

    async def ask_for(name: str) -> set[int]:
        other = await scene.send(chat("hello", model=name))
        return {other.status, (await scene.send(chat("hello"), path=f"/{name}")).status}

    async with streaming(scene) as streams:
        assert await ask_for("unknown") == {404}
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
