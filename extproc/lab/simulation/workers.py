"""Processes for simulations, one for each core. None outlives its parent."""

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
    """Return a pool for this number of tasks; `start` runs first in each process.

    An exception ends all processes.
    """
    number = max(1, min(tasks, os.cpu_count() or 1))
    # Forked processes would inherit the caller's threads and locks.
    pool = ProcessPoolExecutor(number, context(), start)
    try:
        with _children_ignore_interrupt():
            for _ in range(number):
                pool.submit(_nothing)
        yield pool
    except BaseException:
        # Do not cancel: in Python 3.11 this fails if the pool's processes have ended.
        for process in list((pool._processes or {}).values()):
            process.terminate()
        # The pool waits for the rest of a broken result while a process could still write it.
        pool._result_queue._writer.close()  # type: ignore[attr-defined]
        pool.shutdown(wait=False)
        raise
    pool.shutdown()


def context() -> SpawnContext:
    """Return the multiprocessing context that starts the processes."""
    return get_context("spawn")


@contextmanager
def _children_ignore_interrupt() -> Iterator[None]:
    """Block Ctrl-C in the processes started here: the parent handles it and ends them.

    They inherit the blocked signal. Here the signal waits until it is unblocked.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _nothing() -> None:
    """Do nothing, to start a process."""
