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


@pytest.mark.parametrize(
    ("program", "arguments", "shows"),
    [
        (
            "extproc demo",
            ["--users", "6", "--turns", "2"],
            [
                *["RoundRobin", "LeastLoad", "PrefixHash", "PrefixCache", "TTFT", "Verdict: "],
                *['"reason": "prefix"', '"reason": "cached"'],
            ],
        ),
        (
            "extproc.lab.bench",
            ["--quick", "--no-peers"],
            [
                *["the decision alone", "ring_hash", "sidecar us", "200 send 100 MB", "200 hang"],
                *["decide, known prompt", "PrefixCache: memory", "by their own time"],
                *["SSE responses", "targets", "p99 of a choice"],
            ],
        ),
    ],
)
async def test_program_prints_its_tables(
    program: str, arguments: list[str], shows: list[str], tmp_path: Path
) -> None:
    process = Process("program", [sys.executable, "-m", *program.split(), *arguments], tmp_path)
    process.spawn()
    try:
        assert await process.wait(5 * PATIENCE) == 0, process.error_output()
    finally:
        await process.stop()
    printed = process.stdout.read_text()
    for text in shows:
        assert text in printed


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
