"""One process of the load generator: receives its share, reports progress and sends its results.

    python -m extproc.lab.load.worker

`extproc.lab.load.parent` starts it. It ends when the pipe from the parent is closed.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import sys
from pathlib import Path
from typing import BinaryIO

from extproc.lab.load import limits
from extproc.lab.load.bodies import prepare
from extproc.lab.load.messages import Begin, Progress, Ready, Result, Stop, packed, received
from extproc.lab.load.pool import Pool
from extproc.lab.load.process_monitor import ProcessMonitor
from extproc.lab.load.sessions import Driver
from extproc.lab.load.shares import Share

_REPORT_SECONDS = 0.2


def main() -> int:
    """Run one share; return the exit code."""
    # The output of libraries must not mix with the messages.
    out = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)
    # The parent may end first.
    with contextlib.suppress(BrokenPipeError):
        asyncio.run(_work(out))
    return 0


async def _work(out: BinaryIO) -> None:
    orders = await _orders()
    share = await received(orders)
    if not isinstance(share, Share):
        return
    limits.raise_file_limit()
    prepare(due.session for phase in share.phases for due in phase.sessions)
    _spare_collector()
    pool = Pool(share.options)
    for phase in share.phases:
        _send(out, Ready())
        begin = await received(orders)
        if not isinstance(begin, Begin):
            return
        await _Job(Driver(phase, share.options.style, pool, begin.at), pool, out).run(orders)
    pool.close()


def _spare_collector() -> None:
    """Keep the garbage collector from scanning the workload and the streams repeatedly.

    With thousands of streams, a full collection blocks the process for a tenth of a second.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 50, 100)


class _Job:
    """A running phase."""

    def __init__(self, driver: Driver, pool: Pool, out: BinaryIO) -> None:
        self._driver = driver
        self._pool = pool
        self._out = out
        self._watch = ProcessMonitor()

    async def run(self, orders: asyncio.StreamReader) -> None:
        """Run to the end, until `Stop`, or until the parent closes the pipe."""
        driving = asyncio.create_task(self._driver.run())
        helping = [
            asyncio.create_task(task)
            for task in (self._pool.check_timeouts(), self._watch.run(), self._report())
        ]
        order = asyncio.create_task(received(orders))
        tasks = [driving, order, *helping]
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if order in done and not isinstance(order.result(), Stop):
            os._exit(1)  # no parent is left to send results to
        for task in done:
            task.result()
        _send(self._out, self._result())
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)

    def _result(self) -> Result:
        return Result(
            self._driver.records,
            self._watch.seen(),
            unfinished=self._driver.in_flight,
            retried=self._pool.retried,
            connections=self._pool.connections,
            resident_bytes=_resident_bytes(),
        )

    async def _report(self) -> None:
        while True:
            records = self._driver.records
            progress = Progress(
                records.succeeded, records.failed, self._driver.in_flight, records.tokens
            )
            _send(self._out, progress)
            await asyncio.sleep(_REPORT_SECONDS)


async def _orders() -> asyncio.StreamReader:
    """Return a reader of the parent's messages."""
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), sys.stdin.buffer
    )
    return reader


def _send(out: BinaryIO, message: object) -> None:
    data = memoryview(packed(message))
    while data:
        data = data[out.write(data) :]


def _resident_bytes() -> int:
    """Return the resident memory; 0 on systems without /proc."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


if __name__ == "__main__":
    sys.exit(main())
