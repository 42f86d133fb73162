"""The guard ends all processes of an engine; shells replace the engines here."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path

import pytest

from extproc.lab.real_vllm.engines import RealVllm
from extproc.lab.real_vllm.guard import session_members
from extproc.lab.stack.processes import Process, until
from tests.e2e.scene import MODEL

GUARD = (sys.executable, "-m", "extproc.lab.real_vllm.guard")
# A child that ignores SIGTERM and the end of its parent, like the children of an API server.
WITH_CHILD = "sh -c \"trap '' TERM; echo ready; while :; do sleep 1; done\" & "


async def guarded(program: str, directory: Path) -> Process:
    """Start a guard whose program has a child."""
    process = Process("guard", [*GUARD, str(os.getpid()), "sh", "-c", program], directory)
    process.spawn()
    await until(lambda: "ready" in process.stdout.read_text(), 10, "the child")
    return process


async def wait_for_the_end_of(session: int) -> None:
    await until(lambda: session_members(session) == [], 10, f"the end of session {session}")


async def test_ends_all_processes_on_sigterm(tmp_path: Path) -> None:
    guard = await guarded(f"{WITH_CHILD} wait", tmp_path)
    assert len(session_members(guard.pid)) > 2
    await guard.stop()
    assert guard.returncode() == 128 + 15
    assert session_members(guard.pid) == []


async def test_ends_all_processes_with_the_program(tmp_path: Path) -> None:
    guard = await guarded(f"{WITH_CHILD} sleep 0.5; exit 7", tmp_path)
    assert await guard.wait() == 7
    assert session_members(guard.pid) == []


async def test_ends_all_processes_if_the_parent_is_killed(tmp_path: Path) -> None:
    guard = f"{shlex.join(GUARD)} $$ sh -c {shlex.quote(WITH_CHILD + 'wait')}"
    parent = Process("parent", ["sh", "-c", f"{guard} & echo $!; wait"], tmp_path)
    parent.spawn()
    await until(lambda: "ready" in parent.stdout.read_text(), 10, "the child")
    session = int(parent.stdout.read_text().splitlines()[0])
    assert session_members(session)
    await parent.kill()
    await wait_for_the_end_of(session)


async def test_reports_an_engine_that_cannot_start(tmp_path: Path) -> None:
    engine = RealVllm(0, tmp_path / "no-model", MODEL, tmp_path)
    with pytest.raises(RuntimeError, match="vllm-0 did not start"):
        await engine.start()
    await wait_for_the_end_of(engine.pid)
