"""Models documents that are wrong, large, or change all the time: requests continue."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import yaml

from extproc.adapters.configuration.document import MAX_BYTES
from extproc.lab.stack.processes import until
from extproc.lab.stack.sidecar import FileSidecar
from tests.e2e.scene import Json, Launch, Options, Scene, chat
from tests.extent import FULL, PATIENCE, extent, limit
from tests.faults.report import Report
from tests.faults.streams import CLIENTS, PACE, streaming

RELOADS_PER_SECOND = 100
RELOAD_SECONDS = extent(2, full=20)

STALL_SECONDS = limit(0.5)
"""Limit on the time of a decision while a large document takes effect."""

SUCCESSFUL = "extproc_config_last_reload_successful"


async def metric(scene: Scene, name: str) -> float:
    """Return the value of one of the sidecar's metrics."""
    _, text = await scene.sidecar.get("/metrics")
    (line,) = (line for line in text.splitlines() if line.startswith(f"{name} "))
    return float(line.split()[-1])


async def is_successful(scene: Scene, wanted: bool) -> None:
    """Wait until the last document is accepted, or refused."""

    async def is_so() -> bool:
        return await metric(scene, SUCCESSFUL) == wanted

    await until(is_so, PATIENCE, f"{SUCCESSFUL} to be {wanted:d}")


def file_of(scene: Scene) -> Path:
    """Return the path of the models document."""
    assert isinstance(scene.sidecar, FileSidecar)
    return scene.sidecar.models


def put(path: Path, content: bytes) -> None:
    """Replace the file in one step."""
    draft = path.with_suffix(".draft")
    draft.write_bytes(content)
    draft.replace(path)


async def strategy(scene: Scene) -> str:
    """Return the strategy in force."""
    found: str = (await scene.sidecar.state())["llama"]["strategy"]
    return found


async def test_config_typo(launch: Launch, report: Report) -> None:
    """The last good document stays in force, the metric is 0, and a correction takes effect."""
    options = Options(replica_arguments=PACE)
    scene = await launch(options)
    good = file_of(scene).read_bytes()
    bad = [good.replace(b"strategy", b"strategie"), b"[" * 3_000, b""]
    report.tried(f"{len(bad)} bad documents and their corrections, under {CLIENTS} streams")
    async with streaming(scene) as streams:
        for document in bad:
            put(file_of(scene), document)
            await is_successful(scene, False)
            assert await strategy(scene) == "PrefixHash"
            put(file_of(scene), good)
            await is_successful(scene, True)
    report.lost(failed=streams.failed, cut=streams.cut, what=f"of {streams.whole} streams")
    assert streams.outcomes.keys() == {"whole"}
    assert {line["route"] for line in scene.envoy.access_log()} == {"chosen"}


def models(count: int, adapters: int) -> list[Json]:
    """Return so many models, each with long lists."""
    return [
        {
            "name": f"model-{i}",
            "endpoints": [f"198.18.{i % 250}.{j + 1}:8000" for j in range(20)],
            "adapters": [f"adapter-{i}-{j}" for j in range(adapters)],
        }
        for i in range(count)
    ]


async def test_config_large(launch: Launch, report: Report) -> None:
    """A large document takes effect while requests continue; one above the limit is refused.

    The large one has a megabyte in `make faults`, which takes ten seconds of CPU.
    """
    options = Options(replica_arguments=PACE)
    scene = await launch(options)
    large = Options(more_models=models(extent(30, 500), adapters=76), strategy="LeastLoad")
    assert isinstance(scene.sidecar, FileSidecar)
    async with streaming(scene) as streams:
        scene.sidecar.write_models(large.models(scene.replicas.addresses))
        size = file_of(scene).stat().st_size
        report.tried(f"{size:,} bytes, then more than {MAX_BYTES:,}, under {CLIENTS} streams")
        assert MAX_BYTES * extent(5, 90) / 100 < size <= MAX_BYTES
        began, waits = time.monotonic(), list[float]()
        while await strategy(scene) != "LeastLoad":
            asked = time.monotonic()
            await scene.send(chat("hello", model="unknown"))
            waits.append(time.monotonic() - asked)
            assert time.monotonic() - began < limit(30)
        took = time.monotonic() - began
        put(file_of(scene), file_of(scene).read_bytes() + b"#" * MAX_BYTES)
        await is_successful(scene, False)
    report.lost(
        failed=streams.failed,
        cut=streams.cut,
        what=f"of {streams.whole} streams; in force after {took:.1f} s, the slowest refusal "
        f"during that time took {max(waits) * 1000:.0f} ms",
    )
    assert streams.outcomes.keys() == {"whole"}
    assert await strategy(scene) == "LeastLoad"
    assert max(waits) < STALL_SECONDS
    # On a busy machine Envoy's message timeout may pass while the document is read.
    assert scene.routes() - (set() if FULL else {"fallback"}) == {"chosen"}


async def test_config_reloads(launch: Launch, report: Report) -> None:
    """A file with a hundred changes a second harms no stream; its last version takes effect."""
    scene = await launch(Options(replica_arguments=PACE))
    assert isinstance(scene.sidecar, FileSidecar)
    report.tried(
        f"{RELOADS_PER_SECOND} documents a second for {RELOAD_SECONDS} s, under {CLIENTS} streams"
    )
    documents = [
        yaml.safe_dump(Options(strategy=name).models(scene.replicas.addresses)).encode()
        for name in ("LeastLoad", "RoundRobin", "PrefixHash")
    ]
    written = 0
    async with streaming(scene) as streams:
        began = time.monotonic()
        while written < RELOADS_PER_SECOND * RELOAD_SECONDS:
            written += 1
            put(file_of(scene), documents[written % 3])
            due = began + written / RELOADS_PER_SECOND
            await asyncio.sleep(due - time.monotonic())
        scene.sidecar.write_models(Options(strategy="Random").models(scene.replicas.addresses))

        async def is_last() -> bool:
            return await strategy(scene) == "Random"

        await until(is_last, PATIENCE, "the last document to be in force")
    report.lost(
        failed=streams.failed,
        cut=streams.cut,
        what=f"of {streams.whole} streams; {written} documents written",
    )
    assert streams.outcomes.keys() == {"whole"}
    assert {line["route"] for line in scene.envoy.access_log()} == {"chosen"}
