"""Runs a program that starts further processes, and ends all of them with it.

    python -m extproc.lab.real_vllm.guard PARENT_PID PROGRAM ARGUMENT...

If the API server of vLLM is killed, its engine core and its worker run on, each with a gigabyte of
memory. Therefore, they all run in a session led by this guard. The guard kills the session when the
program ends, when it receives SIGTERM, or when its parent has ended for any reason. Ctrl-C reaches
only the parent, which then stops the guard.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType

CHECK_SECONDS = 0.1
"""Interval at which the guard checks the program and the parent."""

GRACE_SECONDS = 5.0
"""Time that the program has to end after SIGTERM."""


def session_members(session: int) -> list[int]:
    """Return the pids of a session's live processes, including its leader."""
    return [
        int(stat.parent.name) for stat in Path("/proc").glob("[0-9]*/stat") if _in(stat, session)
    ]


def _in(stat: Path, session: int) -> bool:
    # The format is "PID (NAME) STATE PPID PGRP SESSION ...", and NAME may contain anything.
    try:
        state, _, _, of = stat.read_text().rpartition(")")[2].split()[:4]
    except OSError:
        return False
    return int(of) == session and state != "Z"


def kill_session(session: int) -> None:
    """Send SIGKILL to all processes of a session except the caller."""
    for pid in session_members(session):
        if pid != os.getpid():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


class Guard:
    """The leader of a session in which one program runs."""

    def __init__(self, parent: int) -> None:
        self._parent = parent
        self._asked_to_stop = False

    def run(self, arguments: Sequence[str]) -> int:
        """Run the program to the end of its session, and return its exit code."""
        os.setsid()
        signal.signal(signal.SIGTERM, self._stop)
        program = subprocess.Popen(arguments)
        try:
            while program.poll() is None and self._wanted():
                time.sleep(CHECK_SECONDS)
            program.terminate()
            with suppress(subprocess.TimeoutExpired):
                program.wait(GRACE_SECONDS)
        finally:
            self._end_session()
        return program.wait()

    def _stop(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        self._asked_to_stop = True

    def _wanted(self) -> bool:
        return not self._asked_to_stop and os.getppid() == self._parent

    def _end_session(self) -> None:
        while session_members(os.getpid()) != [os.getpid()]:
            kill_session(os.getpid())
            time.sleep(CHECK_SECONDS)


if __name__ == "__main__":
    # A program that a signal ended has a negative code, which is mapped as in a shell.
    code = Guard(int(sys.argv[1])).run(sys.argv[2:])
    sys.exit(code if code >= 0 else 128 - code)
