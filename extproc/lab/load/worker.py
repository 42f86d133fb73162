"""One process of the load generator: gets its share, says how it goes, hands in its figures.

    python -m extproc.lab.load.worker

It is started by `extproc.lab.load.parent` and ends when the pipe from there is closed,
however that came about.
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
    """Runs one share."""
    # What a library prints must not come between the messages.
    out = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)
    # A parent that is gone is no reason to complain.
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
    """Keeps the garbage collector from going through workload and streams again and again.

    With thousands of streams a full collection holds everything up for a tenth of a second.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 50, 100)


class _Job:
    """A phase being worked on."""

    def __init__(self, driver: Driver, pool: Pool, out: BinaryIO) -> None:
        self._driver = driver
        self._pool = pool
        self._out = out
        self._watch = ProcessMonitor()

    async def run(self, orders: asyncio.StreamReader) -> None:
        """To the end, or until it is told to stop, or until there is nobody to tell it."""
        driving = asyncio.create_task(self._driver.run())
        helping = [
            asyncio.create_task(task)
            for task in (self._pool.look_after(), self._watch.run(), self._report())
        ]
        order = asyncio.create_task(received(orders))
        tasks = [driving, order, *helping]
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if order in done and not isinstance(order.result(), Stop):
            os._exit(1)  # nobody is there any more to hand anything in to
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
    """What the parent writes."""
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
    """Memory in use; 0 where it cannot be told."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


if __name__ == "__main__":
    sys.exit(main())
