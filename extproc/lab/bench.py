"""What a decision costs: `make bench`.

First the decision alone, in this process; then Envoy with and without the
filter, in one run on the same machine. CPU time per request is the figure to
trust: it hardly moves when neighbours are noisy, as requests per second do.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from random import Random
from time import process_time
from typing import Any

from rich.console import Console
from rich.table import Table

from extproc.core.catalog import Catalog, revise
from extproc.core.conversation import Conversation
from extproc.core.ledger import Ledger
from extproc.core.router import Router
from extproc.core.spec import ModelsSpec
from extproc.core.strategies import build
from extproc.edge.codec import decode, encode
from extproc.edge.wire.external_processor_pb2 import ProcessingRequest
from extproc.lab import bench_prefix_cache, bench_signals
from extproc.lab.bench_signals import SETTLE_SECONDS, Way
from extproc.lab.processes import Process, until
from extproc.lab.stack import ENVOY_CONFIGS, Envoy, EnvoyPlaces, FileSidecar, adapted
from extproc.lab.wire_load import Load

MODEL = "llama"
PATH = "/v1/chat/completions"
KEYS = 64
HEADERS = 14


@dataclass(frozen=True)
class Measured:
    """One way through Envoy under one load."""

    body: str
    connections: int
    way: str
    per_second: float
    p50_ms: float
    p99_ms: float
    envoy_us: float
    sidecar_us: float
    failed: int


def body(size: int, key: int) -> bytes:
    """A chat request of about `size` bytes; `key` makes its prefix."""
    content = f"user {key} asks: " + "lorem ipsum " * (size // 12)
    return json.dumps(
        {"model": MODEL, "stream": True, "messages": [{"role": "user", "content": content}]}
    ).encode()


def decision_microseconds(endpoints: int, size: int, rounds: int) -> float:
    """CPU time to decode, decide, encode and release one request, without any transport."""
    addresses = [f"10.0.{i // 250}.{i % 250 + 1}:8000" for i in range(endpoints)]
    spec = ModelsSpec.model_validate({"models": [{"name": MODEL, "endpoints": addresses}]})
    rng = Random(1)
    router = Router(Ledger())
    router.publish(revise(Catalog(), spec.models, lambda one: build(one, rng, router.signals)))
    messages = [(_headers_message(), _body_message(body(size, key))) for key in range(KEYS)]
    open_conversations = [Conversation(router, rng) for _ in range(4 * endpoints)]

    def one(round_number: int) -> None:
        conversation = Conversation(router, rng)
        for message in messages[round_number % KEYS]:
            (answer,) = conversation.receive(decode(message))
            encode(answer)
        # As many requests stay in flight as a loaded fleet has: the bound must work.
        open_conversations.append(conversation)
        open_conversations.pop(0).close()

    for number in range(rounds // 10):
        one(number)
    started = process_time()
    for number in range(rounds):
        one(number)
    return (process_time() - started) / rounds * 1e6


def _headers_message() -> bytes:
    request = ProcessingRequest()
    headers = request.request_headers.headers.headers
    pairs = {":path": PATH, ":method": "POST", "content-type": "application/json"}
    pairs |= {f"x-header-{i}": "some value" for i in range(HEADERS - len(pairs))}
    for name, value in pairs.items():
        headers.add(key=name, raw_value=value.encode())
    return request.SerializeToString()


def _body_message(content: bytes) -> bytes:
    request = ProcessingRequest()
    # Envoy shows no more than twice its buffer.
    request.request_body.body = content[:65_536]
    request.request_body.end_of_stream = len(content) <= 65_536
    return request.SerializeToString()


async def measure(console: Console, count: int) -> list[Measured]:
    """Runs every load through Envoy alone and through Envoy with the sidecar."""
    results = []
    async with AsyncExitStack() as cleanup:
        directory = Path(
            cleanup.enter_context(tempfile.TemporaryDirectory(prefix="extproc-bench-"))
        )
        upstreams = [await _upstream(f"upstream{i}", directory, cleanup) for i in range(2)]
        model = {"name": MODEL, "endpoints": upstreams}
        sidecar = FileSidecar({"models": [model]}, directory)
        cleanup.push_async_callback(sidecar.stop)
        await sidecar.start()
        places = EnvoyPlaces(sidecar.listen, upstreams)
        with_filter = adapted(ENVOY_CONFIGS / "envoy.yaml", places)
        for size, name in ((1_000, "1 kB"), (40_000, "40 kB"), (400_000, "400 kB")):
            requests = [_request(body(size, key)) for key in range(KEYS)]
            for connections in (1, 32):
                for way, config in (("Envoy", _bare(with_filter)), ("+ extproc", with_filter)):
                    number = count if size < 100_000 else count // 4
                    measured = await _one(config, directory, requests, connections, number, sidecar)
                    results.append(_measured(name, connections, way, *measured))
                    console.print(".", end="")
    console.print()
    return results


async def _one(
    config: dict[str, Any],
    directory: Path,
    requests: Sequence[bytes],
    connections: int,
    count: int,
    sidecar: FileSidecar,
) -> tuple[Load, float, float, float]:
    envoy = Envoy(config, directory)
    await envoy.start()
    try:
        # Opens upstream connections and warms the CPU's caches.
        await Load().run(envoy.ports["llm"], requests, connections, count // 10)
        load = Load()
        before = envoy.cpu_seconds(), sidecar.cpu_seconds()
        seconds = await load.run(envoy.ports["llm"], requests, connections, count)
        after = envoy.cpu_seconds(), sidecar.cpu_seconds()
        return load, seconds, after[0] - before[0], after[1] - before[1]
    finally:
        await envoy.stop()


async def measure_signals(console: Console, count: int) -> list[Way]:
    """Requests through Envoy beside each kind of fleet; latencies are those of whole requests."""
    measured = bench_signals.ways()
    async with AsyncExitStack() as cleanup:
        directory = Path(
            cleanup.enter_context(tempfile.TemporaryDirectory(prefix="extproc-bench-"))
        )
        fleets = await bench_signals.fleets_of(directory, cleanup)
        upstreams = [await _upstream(f"upstream{i}", directory, cleanup) for i in range(2)]
        sidecar = FileSidecar(measured[0].document([], upstreams), directory)
        cleanup.push_async_callback(sidecar.stop)
        config = adapted(ENVOY_CONFIGS / "envoy.yaml", EnvoyPlaces(sidecar.listen, upstreams))
        requests = [_request(body(1_000, key)) for key in range(KEYS)]
        for way in measured:
            sidecar.write_models(way.document(fleets[way.manner], upstreams))
            await sidecar.start()
            await asyncio.sleep(min(SETTLE_SECONDS, count / 800))
            load, way.seconds, _, way.cpu_seconds = await _one(
                config, directory, requests, 2, count, sidecar
            )
            way.latencies, way.failed = load.latencies, load.failed
            await sidecar.stop()
            console.print(".", end="")
    console.print()
    return measured


def _measured(
    name: str, connections: int, way: str, load: Load, seconds: float, envoy: float, sidecar: float
) -> Measured:
    answers = len(load.latencies)
    ordered = sorted(load.latencies)
    return Measured(
        body=name,
        connections=connections,
        way=way,
        per_second=answers / seconds,
        p50_ms=ordered[answers // 2] * 1e3,
        p99_ms=ordered[answers * 99 // 100] * 1e3,
        envoy_us=envoy / answers * 1e6,
        sidecar_us=sidecar / answers * 1e6,
        failed=load.failed,
    )


def table(results: Sequence[Measured]) -> Table:
    """The measurements in pairs, with the ratio of all CPU time to that of Envoy alone."""
    rows = Table(title="through Envoy: one worker, closed loop, upstreams that answer at once")
    for column in (
        *("body", "connections", "way", "requests/s", "p50 ms", "p99 ms"),
        *("Envoy CPU us", "sidecar CPU us", "CPU ratio", "failed"),
    ):
        rows.add_column(column, justify="left" if column in ("body", "way") else "right")
    for alone, filtered in zip(results[::2], results[1::2], strict=True):
        for one in (alone, filtered):
            ratio = (one.envoy_us + one.sidecar_us) / alone.envoy_us
            rows.add_row(
                one.body,
                str(one.connections),
                one.way,
                f"{one.per_second:,.0f}",
                f"{one.p50_ms:.2f}",
                f"{one.p99_ms:.2f}",
                f"{one.envoy_us:.0f}",
                f"{one.sidecar_us:.0f}" if one is filtered else "-",
                f"{ratio:.2f}",
                str(one.failed),
            )
        rows.add_section()
    return rows


def decisions(rounds: int) -> Table:
    """The decision alone, by number of endpoints and size of the body."""
    rows = Table(title="the decision alone: decode, decide, encode, release; CPU us per request")
    rows.add_column("endpoints", justify="right")
    sizes = {"1 kB": 1_000, "40 kB": 40_000, "400 kB (its head)": 400_000}
    for name in sizes:
        rows.add_column(name, justify="right")
    for endpoints in (2, 8, 100):
        costs = (decision_microseconds(endpoints, size, rounds) for size in sizes.values())
        rows.add_row(str(endpoints), *(f"{cost:.0f}" for cost in costs))
    return rows


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line of `make bench`."""
    parser = argparse.ArgumentParser(prog="python -m extproc.lab.bench", description=__doc__)
    parser.add_argument("--requests", type=int, default=8_000, help="in each row")
    parsed = parser.parse_args(arguments)
    console = Console(width=max(Console().width, 120))
    console.print(decisions(parsed.requests))
    console.print(bench_prefix_cache.table(max(parsed.requests // 20, 1)))
    console.print(bench_prefix_cache.memory_table(parsed.requests * 125))
    results = asyncio.run(measure(console, parsed.requests))
    console.print(table(results))
    messages = [(_headers_message(), _body_message(body(1_000, key))) for key in range(KEYS)]
    alone = asyncio.run(bench_signals.measure(messages, max(0.5, parsed.requests / 800)))
    title = "decisions beside a fleet whose signals are read"
    console.print(bench_signals.table(f"{title}: in this process, at random times", alone))
    through = asyncio.run(measure_signals(console, parsed.requests))
    console.print(bench_signals.table(f"{title}: whole requests, 2 connections", through))
    failed = sum(one.failed for one in results) + sum(way.failed for way in through)
    return 1 if failed else 0


async def _upstream(name: str, directory: Path, cleanup: AsyncExitStack) -> str:
    process = Process(name, [sys.executable, "-m", "extproc.lab.wire_load"], directory)
    cleanup.push_async_callback(process.stop)
    process.spawn()
    await until(lambda: process.stdout.read_text().endswith("\n"), 10, f"{name} to listen")
    return f"127.0.0.1:{process.stdout.read_text().strip()}"


def _request(content: bytes) -> bytes:
    head = (
        f"POST {PATH} HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\n"
        f"content-length: {len(content)}\r\n\r\n"
    )
    return head.encode() + content


def _bare(config: dict[str, Any]) -> dict[str, Any]:
    """The same Envoy without the filter: all requests take the plain route."""
    bare: dict[str, Any] = json.loads(json.dumps(config))
    listener = bare["static_resources"]["listeners"][0]
    del listener["filter_chains"][0]["filters"][0]["typed_config"]["http_filters"][0]
    return bare


if __name__ == "__main__":
    sys.exit(main())
