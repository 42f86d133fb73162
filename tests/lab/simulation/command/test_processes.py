"""Processes of `extproc simulate`, and its interruption."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.lab.simulation.command.running import (
    FEW,
    PUBLISHED,
    figures,
)


def workers(of: int) -> list[int]:
    """Return the processes that another one has started, once they have loaded numpy."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            parent = int(entry.joinpath("stat").read_text().rpartition(")")[2].split()[1])
            if parent != of or b"spawn_main" not in entry.joinpath("cmdline").read_bytes():
                continue
            if "numpy" in entry.joinpath("maps").read_text():
                found.append(int(entry.name))
        except OSError:
            continue  # the process has ended
    return found


def interrupt_only_the_parent(pid: int) -> None:
    os.kill(pid, signal.SIGINT)


def interrupt_as_a_terminal_does(pid: int) -> None:
    """Interrupt all of its processes at once; it notices last, in any state."""
    os.kill(pid, signal.SIGSTOP)
    os.killpg(pid, signal.SIGINT)
    time.sleep(0.5)
    os.kill(pid, signal.SIGCONT)


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="finds processes in /proc")
@pytest.mark.parametrize(
    ("asked", "interrupt"),
    [
        (("--workload", "saas"), interrupt_only_the_parent),
        (("--workload", "saas"), interrupt_as_a_terminal_does),
        pytest.param(
            ("--calibrate", PUBLISHED), interrupt_as_a_terminal_does, marks=pytest.mark.full
        ),
    ],
)
def test_an_interrupt_ends_all_its_processes_quietly(
    asked: tuple[str, ...], interrupt: Callable[[int], None]
) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "extproc", "simulate", *asked],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        at_work: list[int] = []
        try:
            while len(at_work) < min(2, os.cpu_count() or 1):
                assert process.poll() is None
                time.sleep(0.02)
                at_work = workers(process.pid)
            interrupt(process.pid)
            out, err = process.communicate(timeout=30)
        finally:
            process.kill()
    assert (process.returncode, out, err) == (130, "", "")
    assert not [pid for pid in at_work if Path(f"/proc/{pid}").exists()]


def test_the_command_itself_runs_in_several_processes() -> None:
    command = [sys.executable, "-m", "extproc", "simulate", *FEW, "--strategy", "Random,LeastLoad"]
    done = subprocess.run([*command, "--json"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert [one["strategy"] for one in figures(done.stdout)] == ["Random", "LeastLoad"]
