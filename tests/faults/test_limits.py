"""Resources that run out: connections, files and the disk for logs; and a wrong wall clock."""

from __future__ import annotations

import asyncio
import json
import os
import re
import resource
import select
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

import extproc
from extproc.lab.load import limits
from extproc.lab.stack.processes import until
from extproc.lab.stack.sidecar import FileSidecar
from tests.e2e.scene import MODEL, Json, Launch, Options, Scene, chat, ext_proc_filter
from tests.extent import PATIENCE, extent
from tests.faults.http2_client import Http2Client
from tests.faults.inside_sidecar import prepare
from tests.faults.report import Report
from tests.faults.streams import CLIENTS, PACE, Streams, streaming

SLOW_AND_ROOMY = ("--time-scale", "0.4", "--max-num-seqs", "4000", "--kv-tokens", "4000000")
STREAMS = extent(1_100, full=2_000)
"""More than the 1,024 requests that Envoy allows by default."""

FILES = 64
JUMPING_SECONDS = extent(2, full=5)
LINES = 3_000
WALL_CLOCK = re.compile(
    r"\btime\.time\b|\btime_ns\b|\bfrom time import [^\n]*\btime\b|\b(datetime|gmtime|localtime)\b"
)
CLOCK_READERS = {
    "adapters/kubernetes/events.py",
    "adapters/observability/logs.py",
    "adapters/tracing/otlp.py",
}
OVERFLOWS = "upstream_(cx|rq_pending|rq_active)_overflow"


def patient(config: Json) -> None:
    # The time of the decisions depends on the machine, so Envoy waits longer for them.
    ext_proc_filter(config)["message_timeout"] = "20s"


def with_keepalive(config: Json) -> None:
    """Send PINGs to the sidecar, far more often than a real configuration does."""
    patient(config)
    (cluster,) = (c for c in config["static_resources"]["clusters"] if c["name"] == "extproc")
    (options,) = cluster["typed_extension_protocol_options"].values()
    http2 = options["explicit_http_config"]["http2_protocol_options"]
    http2["connection_keepalive"] = {"interval": "0.1s", "timeout": "5s"}


@asynccontextmanager
async def expect_in_flight(
    scene: Scene, report: Report, streams: Streams, number: int
) -> AsyncIterator[None]:
    """Assert that so many streams are in flight at once, and overflow no circuit breaker."""
    agreed = asyncio.create_task(scene.agree_on_inflight(number, seconds=2 * PATIENCE))
    yield
    await agreed
    await scene.agree_on_inflight(0)
    overflows = sum((await scene.envoy.stats(OVERFLOWS)).values())
    routes = {line["route"] for line in await scene.access_log(number)}
    report.lost(failed=streams.failed, cut=streams.cut, overflows=overflows)
    assert (streams.whole, overflows, routes) == (number, 0, {"chosen"})


async def test_breakers(launch: Launch, report: Report) -> None:
    """More concurrent streams than Envoy's default limit overflow nothing, and all are counted."""
    scene = await launch(
        Options(change_config=patient, replica_arguments=SLOW_AND_ROOMY, patience=2 * PATIENCE)
    )
    report.tried(f"{STREAMS:,} streams at once")
    streams = Streams()
    bodies = [chat(f"user {i}", tokens=56) for i in range(STREAMS)]
    async with expect_in_flight(scene, report, streams, len(bodies)):
        await asyncio.gather(*(streams.one(scene, body) for body in bodies))


@pytest.mark.soak
async def test_breakers_10k(launch: Launch, report: Report) -> None:
    """Ten thousand streams that start at once overflow nothing, and all are counted."""
    assert limits.raise_file_limit() > 10_500
    scene = await launch(Options(change_config=patient, replica_arguments=SLOW_AND_ROOMY))
    report.tried("10,000 streams at once, 250 on each of 40 connections")
    streams, port = Streams(), scene.envoy.ports["llm"]
    bodies = [json.dumps(chat(f"user {i}", tokens=20, stream=True)).encode() for i in range(250)]
    async with expect_in_flight(scene, report, streams, 40 * len(bodies)):
        clients = [await Http2Client.connect(port) for _ in range(40)]
        responses = [
            (body, response) for client in clients for body, response in client.post(bodies)
        ]
        for body, response in responses:
            received = await response
            streams.note(received.status, received.body, body)
        for client in clients:
            client.close()


@pytest.mark.parametrize(
    "seconds", [2, pytest.param(900, marks=pytest.mark.soak)], ids=["2s", "15m"]
)
async def test_idle_keepalive(launch: Launch, seconds: int, report: Report) -> None:
    """An idle connection with ten PINGs a second is never closed with too_many_pings."""
    scene = await launch(Options(change_config=with_keepalive, replica_arguments=PACE))
    assert (await scene.send(chat("hello"))).status == 200
    report.tried(f"{seconds} s without a request, with a PING every 100 ms")
    await asyncio.sleep(seconds)
    assert (await scene.send(chat("hello"))).status == 200
    stats = await scene.envoy.stats("cluster.extproc.upstream_cx_(total|close_notify|destroy)$")
    connections = stats["cluster.extproc.upstream_cx_total"]
    report.lost(connections=connections - 1)
    assert connections == 1
    assert [line["route"] for line in await scene.access_log(2)] == ["chosen", "chosen"]


def test_clock_unread(report: Report) -> None:
    """Only logs, spans and Kubernetes Events read the time of day."""
    report.tried("a search for code that does, in all modules that requests pass through")
    package = Path(extproc.__file__).parent
    found = {
        str(path.relative_to(package))
        for path in package.rglob("*.py")
        if path.relative_to(package).parts[0] != "lab" and WALL_CLOCK.search(path.read_text())
    }
    report.lost(others=len(found - CLOCK_READERS))
    assert found == CLOCK_READERS


async def test_clock_jump(
    launch: Launch, report: Report, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a wrong wall clock, metrics stay fresh, decisions continue, and a drain ends in time."""
    readings = tmp_path / "readings"
    prepare(monkeypatch, clock=readings)
    scene = await launch(Options(strategy="LeastQueue", replica_arguments=PACE))
    report.tried(
        "each reading of the wall clock a day ahead or behind, in turn, "
        f"during {JUMPING_SECONDS} s of streams"
    )
    async with streaming(scene) as streams:
        await asyncio.sleep(JUMPING_SECONDS)
        endpoints = (await scene.sidecar.state())["llama"]["endpoints"]
    ages = [endpoint["signals"]["age_seconds"] for endpoint in endpoints]
    routes = {line["route"] for line in scene.envoy.access_log()}
    await scene.agree_on_inflight(0)
    scene.sidecar.signal(signal.SIGTERM)
    assert await scene.sidecar.wait(PATIENCE) == 0
    report.lost(
        failed=streams.failed,
        cut=streams.cut,
        what=f"of {streams.whole} streams; the clock was read {readings.stat().st_size} times",
    )
    assert readings.stat().st_size > 0, "the clock did not jump"
    assert streams.outcomes.keys() == {"whole"}
    assert routes == {"chosen"}
    assert all(0 <= age < PATIENCE for age in ages)


async def test_fd_exhaustion(launch: Launch, report: Report) -> None:
    """Idle connections never use the last files: the admin port responds, documents reload."""
    scene = await launch(Options(replica_arguments=PACE))
    host, _, port = scene.sidecar.listen.rpartition(":")
    report.tried(f"{2 * FILES} idle connections with {FILES} open files allowed, {CLIENTS} streams")
    opened = []
    async with streaming(scene) as streams:
        resource.prlimit(scene.sidecar.pid, resource.RLIMIT_NOFILE, (FILES, FILES))
        for _ in range(2 * FILES):
            _, writer = await asyncio.open_connection(host, int(port))
            opened.append(writer)
        assert await scene.sidecar.is_ready()
        assert isinstance(scene.sidecar, FileSidecar)
        scene.sidecar.write_models(Options(strategy="Random").models(scene.replicas.addresses))

        async def is_in_force() -> bool:
            in_force: str = (await scene.sidecar.state())["llama"]["strategy"]
            return in_force == "Random"

        await until(is_in_force, PATIENCE, "the changed document to be in force")
        used = open_files(scene)
        for writer in opened:
            writer.transport.abort()
    report.lost(
        failed=streams.failed,
        cut=streams.cut,
        what=f"of {streams.whole} streams; {used} files open",
    )
    assert used < FILES
    assert streams.outcomes.keys() == {"whole"}
    assert {line["route"] for line in scene.envoy.access_log()} == {"chosen"}
    await scene.agree_on_inflight(0)


def open_files(scene: Scene) -> int:
    """Return the number of files that the sidecar has open."""
    return len(list(Path(f"/proc/{scene.sidecar.pid}/fd").iterdir()))


async def restart_logging_to(scene: Scene, stderr: Path) -> None:
    await scene.sidecar.kill()
    # `spawn` instead of `start`, because `start` reads the error output from this file.
    scene.sidecar.stderr = stderr
    scene.sidecar.spawn()
    await until(scene.sidecar.is_ready, PATIENCE, "the sidecar to be ready")


@pytest.mark.parametrize("level", ["info", "debug"])
async def test_disk_full(launch: Launch, level: str, report: Report) -> None:
    """The sidecar keeps routing while it cannot log, and drains as usual."""
    scene = await launch(Options(replica_arguments=PACE, sidecar_arguments=("--log-level", level)))
    report.tried(f"stderr to /dev/full at level {level}, under {CLIENTS} streams and refusals")
    await restart_logging_to(scene, Path("/dev/full"))
    async with streaming(scene) as streams:
        refusals = [await scene.send(chat("hello", model="unknown")) for _ in range(50)]
        await asyncio.sleep(1)
    await scene.agree_on_inflight(0)
    routes = scene.routes()
    scene.sidecar.signal(signal.SIGTERM)
    code = await scene.sidecar.wait(PATIENCE)
    report.lost(
        failed=streams.failed,
        cut=streams.cut,
        what=f"of {streams.whole} streams; exit code {code}",
    )
    assert {reply.status for reply in refusals} == {404}
    assert streams.outcomes.keys() == {"whole"}
    assert routes == {"chosen"}
    assert code == 0


@asynccontextmanager
async def unread_pipe(path: Path) -> AsyncIterator[None]:
    """Create a pipe with a reader that never reads."""
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        yield
    finally:
        os.close(reader)


def is_full(pipe: Path) -> bool:
    """True if a write to the pipe would block."""
    writer = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
    try:
        return not select.select([], [writer], [], 0)[1]
    finally:
        os.close(writer)


async def test_log_pipe_unread(launch: Launch, report: Report, tmp_path: Path) -> None:
    """With an unread log, the sidecar keeps routing, counts lost lines, and drains as usual."""
    arguments = ("--log-level", "debug", "--grace", "10")
    scene = await launch(Options(replica_arguments=PACE, sidecar_arguments=arguments))
    report.tried(
        f"stderr to a pipe without a reader, at level debug, under {CLIENTS} streams and "
        f"{LINES:,} requests"
    )
    pipe = tmp_path / "unread"
    # A sidecar that waits for its log would not respond at all, so this block has a time limit.
    async with unread_pipe(pipe), asyncio.timeout(4 * PATIENCE):
        await restart_logging_to(scene, pipe)
        async with streaming(scene) as streams:
            statuses = await send_many(scene)
            full = is_full(pipe)
            await asyncio.sleep(1)
        await scene.agree_on_inflight(0)
        dropped = await scene.metric("extproc_log_lines_dropped_total")
        routes = scene.routes()
        scene.sidecar.signal(signal.SIGTERM)
        code = await scene.sidecar.wait(PATIENCE)
    report.lost(
        failed=streams.failed,
        cut=streams.cut,
        what=f"of {streams.whole} streams; {dropped:g} lines of the log; exit code {code}",
    )
    assert full
    assert statuses == {200}
    assert streams.outcomes.keys() == {"whole"}
    assert routes == {"chosen"}
    assert dropped > 0
    assert code == 0


async def send_many(scene: Scene) -> set[int]:
    """Send `LINES` requests, each of which logs a line at level debug. Return the statuses."""
    statuses = set[int]()
    for _ in range(0, LINES, CLIENTS):
        body = {"model": MODEL, "input": "hello"}
        sent = (scene.send(body, path="/v1/embeddings") for _ in range(CLIENTS))
        replies = await asyncio.gather(*sent)
        statuses |= {reply.status for reply in replies}
    return statuses
