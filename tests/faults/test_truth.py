"""The ledger counts the requests that the replicas hold, also when clients disconnect."""

from __future__ import annotations

import asyncio
import json
import time
from asyncio import StreamReader, StreamWriter
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from tests.e2e.scene import CHAT, Launch, Options, Scene, chat
from tests.extent import extent, limit
from tests.faults.inside_sidecar import complaints, holdings, holdings_after, prepare
from tests.faults.report import Report
from tests.faults.streams import CLIENTS, PACE, streaming

CANCELS = extent(100, full=1000)
AT_ONCE = 100
BODY = json.dumps({**chat("hello", tokens=400), "stream": True}).encode()
HEAD = f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(BODY)}\r\n\r\n".encode()

SAMPLE_SECONDS = extent(3, full=60)
SAMPLES_PER_SECOND = 10

Phase = Callable[[StreamReader, StreamWriter], Awaitable[object]]


async def within_headers(_: StreamReader, writer: StreamWriter) -> None:
    writer.write(HEAD[:40])


async def before_body(_: StreamReader, writer: StreamWriter) -> None:
    writer.write(HEAD)
    await asyncio.sleep(0.005)


async def within_body(_: StreamReader, writer: StreamWriter) -> None:
    writer.write(HEAD + BODY[:50])
    await asyncio.sleep(0.005)


async def with_last_byte(_: StreamReader, writer: StreamWriter) -> None:
    writer.write(HEAD + BODY)
    await writer.drain()


async def during_decision(_: StreamReader, writer: StreamWriter) -> None:
    writer.write(HEAD + BODY)
    await asyncio.sleep(0.003)


async def at_response_headers(reader: StreamReader, writer: StreamWriter) -> None:
    writer.write(HEAD + BODY)
    await reader.readuntil(b"\r\n\r\n")


async def at_first_token(reader: StreamReader, writer: StreamWriter) -> None:
    writer.write(HEAD + BODY)
    await reader.readuntil(b"data: ")


PHASES: list[Phase] = [
    within_headers,
    before_body,
    within_body,
    with_last_byte,
    during_decision,
    at_response_headers,
    at_first_token,
]


async def cancel(scene: Scene, phase: Phase) -> None:
    """Run many clients at once that disconnect in this phase."""
    port = scene.envoy.ports["llm"]

    async def client() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        await phase(reader, writer)
        writer.transport.abort()

    for _ in range(0, CANCELS, AT_ONCE):
        await asyncio.gather(*(client() for _ in range(AT_ONCE)))


async def test_cancel_everywhere(
    launch: Launch, report: Report, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing remains in the ledger, and no task, file or thread; the log has no complaint."""
    tasks = tmp_path / "tasks"
    prepare(monkeypatch, tasks=tasks)
    scene = await launch(Options(replica_arguments=("--time-scale", "20", *PACE[2:])))
    assert (await scene.send(chat("hello"))).status == 200
    before = await holdings(scene.sidecar, tasks)
    report.tried(f"{CANCELS} clients disconnect in each of {len(PHASES)} phases, {AT_ONCE} at once")
    for phase in PHASES:
        await cancel(scene, phase)
    await scene.agree_on_inflight(0)
    after = await holdings_after(scene.sidecar, tasks, before)
    complaints_found = complaints(scene.sidecar)
    report.lost(
        leases=sum((await scene.sidecar.inflight()).values()),
        tasks=after.tasks - before.tasks,
        files=after.files - before.files,
        threads=after.threads - before.threads,
        complaints=len(complaints_found),
    )
    assert after == before
    assert complaints_found == []
    assert (await scene.send(chat("hello"))).status == 200


async def test_inflight_truth(launch: Launch, report: Report) -> None:
    """Ten times a second, each endpoint's count differs from its replica's by at most one.

    Streams begin and end in bursts here, and for some milliseconds only one side counts them.
    So a difference counts only if it lasts for a tenth of a second. On a busy machine, one side may
    not run for that long, so `make test` waits longer for the two to agree.
    """
    scene = await launch(Options(replica_arguments=PACE))
    report.tried(
        f"{SAMPLE_SECONDS} s at {SAMPLES_PER_SECOND} Hz, under {CLIENTS} streams that come and go"
    )
    errors = []
    async with streaming(scene) as streams:
        for _ in range(SAMPLE_SECONDS * SAMPLES_PER_SECOND):
            errors.append(await lasting_error(scene))
            await asyncio.sleep(1 / SAMPLES_PER_SECOND)
    await scene.agree_on_inflight(0)
    wrong = sum(one > 1 for one in errors)
    report.lost(
        samples_that_differ_by_more_than_one=wrong,
        what=f"of {len(errors)}; the largest difference was {max(errors)}; "
        f"{streams.whole} streams ended",
    )
    assert streams.outcomes.keys() == {"whole"}
    assert wrong == 0


async def lasting_error(scene: Scene) -> int:
    """Return the smallest error within a tenth of a second; in `make test` within a minute."""
    began = time.monotonic()
    found = await error(scene)
    while found > 1 and time.monotonic() < began + limit(0.1):
        await asyncio.sleep(0.01)
        found = min(found, await error(scene))
    return found


async def error(scene: Scene) -> int:
    """Return the largest error of an endpoint's count.

    The two sides cannot be read at the same moment, so the replicas' counts are compared with
    the sidecar's counts before and after.
    """
    before = await scene.sidecar.inflight()
    theirs = await scene.replicas.inflight()
    after = await scene.sidecar.inflight()
    found = 0
    for address in scene.replicas.addresses:
        ours = sorted((before.get(address, 0), after.get(address, 0)))
        held = theirs.get(address, 0)
        found = max(found, ours[0] - held, held - ours[1])
    return found
