"""The resources that a running sidecar holds: its tasks, files and threads."""

from __future__ import annotations

import asyncio
import signal
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

import pytest

from extproc.lab.stack.processes import until
from extproc.lab.stack.sidecar import SidecarProcess
from tests.extent import PATIENCE

_INSIDE = Path(__file__).with_name("inside")

COMPLAINTS = ("Traceback", "never retrieved", "never awaited", "Task was destroyed")
"""Texts that must not appear in the log."""


def prepare(monkeypatch: pytest.MonkeyPatch, **environment: Path) -> None:
    """Make sidecars that start later load `inside/sitecustomize.py` with this environment."""
    monkeypatch.setenv("PYTHONPATH", str(_INSIDE))
    for name, value in environment.items():
        monkeypatch.setenv(f"EXTPROC_TEST_{name.upper()}", str(value))


@dataclass(frozen=True)
class Holdings:
    """The resources that a process holds and must release."""

    tasks: int
    files: int
    threads: int


async def holdings(sidecar: SidecarProcess, tasks: Path) -> Holdings:
    """Return the holdings of a sidecar that was prepared to write its number of tasks there."""
    tasks.unlink(missing_ok=True)
    sidecar.signal(signal.SIGUSR2)
    await until(tasks.exists, PATIENCE, "the sidecar to count its tasks")
    process = Path(f"/proc/{sidecar.pid}")
    return Holdings(
        tasks=int(tasks.read_text()),
        files=len(list((process / "fd").iterdir())),
        threads=len(list((process / "task").iterdir())),
    )


async def holdings_after(sidecar: SidecarProcess, tasks: Path, before: Holdings) -> Holdings:
    """Return the holdings once they equal those `before`, or the last ones when patience ends.

    Connections that a busy machine has not closed yet have tasks of their own.
    """
    deadline = monotonic() + PATIENCE
    while (after := await holdings(sidecar, tasks)) != before and monotonic() < deadline:
        await asyncio.sleep(0.1)
    return after


def complaints(sidecar: SidecarProcess) -> list[str]:
    """Return the lines of the log that contain one of `COMPLAINTS`."""
    text = sidecar.stderr.read_text(errors="replace")
    return [line for line in text.splitlines() if any(word in line for word in COMPLAINTS)]
