"""The whole load generator with its processes, against stand-in replicas."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from extproc.lab.load import figures, parent
from extproc.lab.load.bodies import BodyOptions
from extproc.lab.load.messages import Progress
from extproc.lab.load.shares import RequestOptions, plan
from extproc.lab.load.target import Target
from extproc.lab.measures.run import Run
from extproc.lab.stack.processes import Process, until
from extproc.lab.stack.stand_in_fleet import StandInFleet
from extproc.lab.workloads.workload import Segment, Session, Workload, conversation
from tests.e2e.forked import ForkedFleet
from tests.extent import PATIENCE

if TYPE_CHECKING:
    from tests.lab.load.conftest import Serve

SYSTEM = Segment("shared system prompt", 64, "system")


@pytest.fixture
async def fleet(tmp_path: Path) -> AsyncIterator[StandInFleet]:
    arguments = ["--model", "llama", "--time-scale", "100"]
    arguments += ["--max-loras", "2", "--adapters", "sql"]
    replicas = ForkedFleet(1, tmp_path, arguments)
    await replicas.start()
    yield replicas
    await replicas.stop()


def workload(sessions: int, turns: int = 3, concurrency: int | None = None) -> Workload:
    made = [
        Session(conversation(f"s{n}", [SYSTEM], [32] * turns, [16] * turns))
        for n in range(sessions)
    ]
    return Workload("talk", made, concurrency)


async def load(address: str, work: Workload, processes: int = 2, model: str = "llama") -> Run:
    host, _, port = address.partition(":")
    target = Target(False, host, int(port), addresses=(host,))
    seen: list[Progress] = []
    phases: list[int] = []
    planned = plan(
        work, 0, processes, RequestOptions(target, BodyOptions(model, work.api), timeout=PATIENCE)
    )
    async with asyncio.timeout(PATIENCE):
        collected = await parent.run(planned, phases.append, seen.append)
    assert phases == list(range(len(planned.phases)))
    assert seen
    return figures.run_of(collected, work.name, "test")


async def test_conversations_run_in_several_processes(fleet: StandInFleet) -> None:
    run = await load(fleet.addresses[0], workload(12, concurrency=6))
    assert run.succeeded.all()
    assert run.sent.size == 36
    assert list(set(run.output_tokens)) == [16]
    assert (run.first >= run.sent).all()
    assert (run.last >= run.first).all()
    assert run.gaps.size == 36 * 15
    assert 1 < run.notes["peak_in_flight"] <= 6
    assert run.notes["client"]["processes"] == 2
    assert run.notes["client"]["connections"] <= 6, "sessions share them"
    # In a later turn, the cache has the earlier messages and the real response, in blocks of 16
    # tokens. Only the marks of the chat template and the message are new.
    later = run.prompt_tokens > 130
    assert later.sum() == 24
    assert (run.prompt_tokens[later] - run.cached_tokens[later] < 32 + 16 + 16).all()
    requests = await fleet.requests()
    assert requests[fleet.addresses[0]]["total"] == 36
    assert run.notes["endpoint_names"] == [fleet.addresses[0].rpartition(":")[2]]
    assert set(run.endpoint) == {0}


async def test_the_results_exclude_the_warm_up(fleet: StandInFleet) -> None:
    work = workload(4, turns=1)
    twice = replace(work, sessions=[*work.sessions, *work.sessions], warm_up=4)
    run = await load(fleet.addresses[0], twice)
    assert run.sent.size == 4
    assert (run.cached_tokens >= 96).all()
    assert (await fleet.requests())[fleet.addresses[0]]["total"] == 8


async def test_requests_use_adapters_and_completions(fleet: StandInFleet) -> None:
    turns = conversation("s", [SYSTEM], [32], [16], adapter="sql")
    work = replace(workload(3, turns=1), api="completions")
    run = await load(
        fleet.addresses[0], replace(work, sessions=[*work.sessions, Session(turns)]), processes=1
    )
    assert run.succeeded.all()
    assert list(run.prompt_tokens) == [96] * 4
    assert sum(run.cached_tokens == 0) >= 1, "an adapter's cache is its own"


async def test_failures_are_counted_and_a_failing_run_is_given_up(fleet: StandInFleet) -> None:
    run = await load(fleet.addresses[0], workload(2, turns=1), model="unknown")
    assert not run.succeeded.any()
    ((kind, found),) = run.notes["failures"].items()
    assert (kind, found["count"]) == ("HTTP 404", 2)
    assert "unknown" in found["first"]
    assert "interrupted" not in run.notes
    run = await load(fleet.addresses[0], workload(900, turns=1, concurrency=150), model="unknown")
    assert 100 <= run.sent.size < 900
    assert run.notes["interrupted"].startswith("given up: the first ")


def command(tmp_path: Path, *arguments: str) -> Process:
    line = [sys.executable, "-m", "extproc.lab.load", "--model", "llama", *arguments]
    environment = {"OPENAI_API_KEY": "sk-very-secret", "COLUMNS": "80"}
    return Process("load", line, tmp_path, environment)


async def finished(process: Process, seconds: float = PATIENCE) -> tuple[int, str, str]:
    try:
        code = await process.wait(seconds)
    finally:
        await process.stop()
    return code, process.stdout.read_text(), process.stderr.read_text()


async def test_the_command_measures_a_run(fleet: StandInFleet, tmp_path: Path) -> None:
    figures_file, chart = tmp_path / "figures.json", tmp_path / "chart.png"
    report = tmp_path / "report.html"
    process = command(
        tmp_path,
        *("--url", f"http://{fleet.addresses[0]}/v1", "--workload", "lora-0"),
        *("--sessions", "8", "--concurrency", "4", "--strategy", "LeastLoad"),
        *("--json", str(figures_file), "--plot", str(chart), "--report", str(report)),
    )
    process.spawn()
    code, out, err = await finished(process)
    assert code == 0, err
    assert "failed" not in err
    assert "Serving Benchmark Result" in out
    assert "Failed requests:                         0 " in out
    assert "client: 2 processes" in out or "client: 1 processes" in out
    assert "published" not in out, "it is only a part of the workload"
    written = json.loads(figures_file.read_text())
    assert written["strategy"] == "LeastLoad"
    assert written["failed"] == 0
    assert written["hit_rate"] is not None
    assert chart.read_bytes().startswith(b"\x89PNG")
    assert f"sent to {fleet.addresses[0]}" in report.read_text()


async def test_a_failing_warm_up_is_reported(fleet: StandInFleet, tmp_path: Path) -> None:
    url = f"http://{fleet.addresses[0]}"
    process = command(tmp_path, "--url", url, "--workload", "blog-8xH100", "--model", "unknown")
    process.spawn()
    code, out, err = await finished(process)
    assert (code, out) == (1, "")
    first, last = err.splitlines()
    assert " x HTTP 404, first: " in first
    assert last.endswith("requests failed; nothing was measured")


async def test_a_key_that_the_server_quotes_is_not_printed(serve: Serve, tmp_path: Path) -> None:
    async def respond(_: bytes, writer: asyncio.StreamWriter) -> None:
        said = b'{"error": {"message": "Incorrect API key provided: sk-very-secret"}}'
        head = b"HTTP/1.1 401 Unauthorized\r\ncontent-length: %d\r\n\r\n"
        writer.write(head % len(said) + said)

    server = await serve(respond)
    url = f"http://127.0.0.1:{server.port}"
    process = command(
        tmp_path, "--url", url, "--workload", "saas", "--sessions", "1", "--json", "-"
    )
    process.spawn()
    code, out, err = await finished(process)
    assert code == 1, "nothing succeeded"
    assert b"authorization: Bearer sk-very-secret" in server.heads[0]
    assert "failed: 1 x HTTP 401, first: Incorrect API key provided: ***" in err
    assert "very-secret" not in out + err
    assert json.loads(out)["failed"] == 1


async def streams_without_end(_: bytes, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n")
    while not writer.transport.is_closing():
        writer.write(b'data: {"choices":[{"delta":{"content":"word "}}]}\n\n')
        await asyncio.sleep(0.05)


def children(pid: int) -> list[int]:
    return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def runs(pid: int) -> bool:
    """Return True if a process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
async def test_a_signal_ends_all_processes(
    serve: Serve, tmp_path: Path, number: signal.Signals
) -> None:
    server = await serve(streams_without_end)
    url = f"http://127.0.0.1:{server.port}"
    arguments = ["--workload", "lora-0", "--concurrency", "10", "--processes", "2"]
    process = command(tmp_path, "--url", url, *arguments)
    process.spawn()
    try:
        await until(lambda: len(server.bodies) == 10, PATIENCE, "ten streams")
        workers = children(process.pid)
        assert len(workers) == 2
        assert all(os.getpgid(worker) == worker for worker in workers)
        process.signal(number)
        code, out, err = await finished(process)
    finally:
        await process.stop()
    await until(lambda: not any(runs(worker) for worker in workers), PATIENCE, "the workers' end")
    if number == signal.SIGKILL:
        return
    assert code == 130
    assert "Successful requests:                     0 " in out
    # On a busy machine, more warnings may follow.
    first, _, _ = err.partition("\n")
    assert first == (
        "extproc load: interrupted; the results leave out 10 requests that were in flight"
    )


async def test_a_dead_worker_is_an_error_and_the_others_end(serve: Serve, tmp_path: Path) -> None:
    server = await serve(streams_without_end)
    url = f"http://127.0.0.1:{server.port}"
    process = command(tmp_path, "--url", url, "--workload", "saas", "--processes", "2")
    process.spawn()
    try:
        await until(lambda: len(server.bodies) > 0, PATIENCE, "a stream")
        first, second = children(process.pid)
        os.kill(first, signal.SIGKILL)
        code, out, err = await finished(process)
    finally:
        await process.stop()
    assert (code, out) == (1, "")
    assert err == "extproc load: a worker process ended with -9\n"
    assert not runs(second)
