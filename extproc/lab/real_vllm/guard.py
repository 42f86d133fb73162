"""Runs a program that starts further processes, and leaves none of them behind.

    python -m extproc.lab.real_vllm.guard PARENT_PID PROGRAM ARGUMENT...

A vLLM whose API server is killed leaves its engine core and worker running, each
with its gigabyte. So all of them live in a session of their own, led by this guard:
when the program ends, when SIGTERM asks it to, or when the parent is gone, however
it went, everything that is left of the session ends. A Ctrl-C reaches the parent
alone, which then stops the guard in good order.
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

LOOK_SECONDS = 0.1
"""Between two looks at whether program and parent are still there."""

GRACE_SECONDS = 5.0
"""For the program to end by itself after SIGTERM."""


def session_members(session: int) -> list[int]:
    """The processes of a session that have not ended, its leader included."""
    return [
        int(stat.parent.name) for stat in Path("/proc").glob("[0-9]*/stat") if _in(stat, session)
    ]


def _in(stat: Path, session: int) -> bool:
    # "PID (NAME) STATE PPID PGRP SESSION ...", where NAME may hold anything.
    try:
        state, _, _, of = stat.read_text().rpartition(")")[2].split()[:4]
    except OSError:
        return False
    return int(of) == session and state != "Z"


def kill_session(session: int) -> None:
    """SIGKILL to everything in a session but the caller."""
    for pid in session_members(session):
        if pid != os.getpid():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


class Guard:
    """Leads a session in which one program runs."""

    def __init__(self, parent: int) -> None:
        self._parent = parent
        self._asked_to_stop = False

    def run(self, arguments: Sequence[str]) -> int:
        """The program's exit code, once nothing of it is left."""
        os.setsid()
        signal.signal(signal.SIGTERM, self._stop)
        program = subprocess.Popen(arguments)
        try:
            while program.poll() is None and self._wanted():
                time.sleep(LOOK_SECONDS)
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
            time.sleep(LOOK_SECONDS)


if __name__ == "__main__":
    # A negative code, of a program ended by a signal, is told as a shell tells it.
    code = Guard(int(sys.argv[1])).run(sys.argv[2:])
    sys.exit(code if code >= 0 else 128 - code)
