"""Test hooks that run in the sidecar's process before its own code.

On SIGUSR2, the process writes the number of tasks of its loop to the file EXTPROC_TEST_TASKS.
With EXTPROC_TEST_CLOCK, each reading of the wall clock is a day ahead or a day behind, in turn.
The process adds a byte to that file for each reading.
"""

from __future__ import annotations

import os
import sys

_DAY = 86_400


def _write_tasks(path: str) -> None:
    import asyncio
    import signal

    def write(*_: object) -> None:
        count = len(asyncio.all_tasks(asyncio.get_running_loop()))
        with open(path + ".draft", "w") as file:
            file.write(str(count))
        os.replace(path + ".draft", path)

    signal.signal(signal.SIGUSR2, write)


def _jump(log: str) -> None:
    import datetime
    import time
    from itertools import count

    readings = count()
    real, real_ns = time.time, time.time_ns

    def offset() -> int:
        number = next(readings)
        with open(log, "a") as file:
            file.write(".")
        return _DAY if number % 2 else -_DAY

    class Jumping(datetime.datetime):
        @classmethod
        def now(cls, tz: datetime.tzinfo | None = None) -> Jumping:
            return super().now(tz) + datetime.timedelta(seconds=offset())

    time.time = lambda: real() + offset()
    time.time_ns = lambda: real_ns() + offset() * 10**9
    datetime.datetime = Jumping  # type: ignore[misc]


if "serve" in sys.orig_argv:
    if tasks := os.environ.get("EXTPROC_TEST_TASKS"):
        _write_tasks(tasks)
    if clock := os.environ.get("EXTPROC_TEST_CLOCK"):
        _jump(clock)
