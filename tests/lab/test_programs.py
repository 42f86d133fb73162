"""The laboratory's programs as a whole, as `make demo`, `make run` and `make bench` start them."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import aiohttp
import pytest

from extproc.lab.stack.processes import Process, until
from tests.extent import PATIENCE

NOT_OF_THE_DEMO = "grpc grpc_health kubernetes opentelemetry scipy"
"""Packages that the extra `demo` does not install."""


@pytest.fixture
def only_the_extra_demo(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1] / "without"))
    monkeypatch.setenv("EXTPROC_TEST_HIDDEN", NOT_OF_THE_DEMO)


async def output_of(directory: Path, *command: str) -> str:
    """Run a command to its end with exit code 0, and return its output."""
    process = Process("program", [sys.executable, "-m", *command], directory)
    process.spawn()
    try:
        assert await process.wait(20 * PATIENCE) == 0, process.error_output()
    finally:
        await process.stop()
    return process.stdout.read_text()


@pytest.mark.usefixtures("only_the_extra_demo")
async def test_demo_prints_its_tables_and_writes_its_report(tmp_path: Path) -> None:
    report = tmp_path / "report.html"
    size = ("--users", "6", "--turns", "2")
    printed = await output_of(tmp_path, "extproc", "demo", *size, "--report", str(report))
    for strategy in ("RoundRobin", "LeastLoad", "PrefixHash", "PrefixCache"):
        assert strategy in printed
    for text in ("TTFT", "Verdict: ", '"reason": "prefix"', '"reason": "cached"'):
        assert text in printed
    assert f"Report with charts: {report}" in printed
    assert report.read_text().count("<svg") == 4


async def test_benchmark_prints_its_tables(tmp_path: Path) -> None:
    printed = await output_of(tmp_path, "extproc.lab.bench", "--quick", "--no-peers")
    for text in (
        *("the decision alone", "ring_hash", "sidecar us", "200 send 100 MB", "200 hang"),
        *("decide, known prompt", "PrefixCache: memory", "by their own time"),
        *("SSE responses", "targets", "p99 of a choice"),
    ):
        assert text in printed


@pytest.mark.usefixtures("only_the_extra_demo")
async def test_run_serves_the_requests_that_it_prints(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "extproc", "run"]
    process = Process("run", command, tmp_path)
    process.spawn()
    try:
        await until(lambda: "Ctrl-C" in process.stdout.read_text(), PATIENCE, "the stack")
        printed = process.stdout.read_text()
        found = re.search(r"curl -N (\S+) -d '(.*)'", printed)
        assert found
        gets = re.findall(r"^curl (http\S+)$", printed, re.MULTILINE)
        assert len(gets) == 3
        async with aiohttp.ClientSession() as session:
            async with session.post(found[1], json=json.loads(found[2])) as response:
                assert response.status == 200
                assert (await response.read()).endswith(b"data: [DONE]\n\n")
            for url in gets:
                async with session.get(url) as response:
                    assert response.status == 200
    finally:
        await process.stop()
    assert process.returncode() == 0
