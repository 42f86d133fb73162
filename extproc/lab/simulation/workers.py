"""Processes that simulate, one for each core, and none that outlives whoever wanted it."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.context import SpawnContext


@contextmanager
def workers(tasks: int, start: Callable[[], None] | None = None) -> Iterator[ProcessPoolExecutor]:
    """A pool for so many tasks; `start` runs first in each process. An exception ends them all."""
    number = max(1, min(tasks, os.cpu_count() or 1))
    # Forked processes would inherit whatever threads and locks the caller has.
    pool = ProcessPoolExecutor(number, context(), start)
    try:
        with _deaf_children():
            for _ in range(number):
                pool.submit(_nothing)
        yield pool
    except BaseException:
        # Nothing is cancelled: Python 3.11's pool stumbles over that when its processes are gone.
        for process in list((pool._processes or {}).values()):
            process.terminate()
        # Of a result that broke off the rest is waited for while somebody could still write it.
        pool._result_queue._writer.close()  # type: ignore[attr-defined]
        pool.shutdown(wait=False)
        raise
    pool.shutdown()


def context() -> SpawnContext:
    """How the processes come into being."""
    return get_context("spawn")


@contextmanager
def _deaf_children() -> Iterator[None]:
    """Processes started here do not hear a terminal's Ctrl-C: their parent does, and ends them.

    They inherit that it is blocked. Here it waits until it is not.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _nothing() -> None:
    """Starts a process."""
