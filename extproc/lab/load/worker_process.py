"""One worker process, seen from its parent.

It is a process group of its own, so that Ctrl-C at a terminal reaches only the parent, which asks
for what there is. A worker whose pipe is closed ends: that is how none is left behind, even
where the parent is killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import TypeVar

from extproc.lab.load.messages import Progress, Ready, Result, packed, received
from extproc.lab.load.shares import Share

Message = TypeVar("Message")


class LoadError(Exception):
    """The load generator itself failed."""


class WorkerProcess:
    """One of those who do the work."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.progress = Progress(0, 0, 0, 0)

    @classmethod
    async def start(cls, share: Share) -> WorkerProcess:
        """With its share."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "extproc.lab.load.worker"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            process_group=0,
        )
        worker = cls(process)
        worker.send(share)
        return worker

    def send(self, message: object) -> None:
        """Writes to it; what it does not read is kept for it."""
        assert self._process.stdin is not None
        self._process.stdin.write(packed(message))

    async def ready(self) -> None:
        """Waits until it can begin. Raises LoadError."""
        await self._until(Ready, lambda: None)

    async def result(self, changed: Callable[[], None]) -> Result:
        """What it workers in; `changed` is called when it told how it goes. Raises LoadError."""
        return await self._until(Result, changed)

    async def _until(self, kind: type[Message], changed: Callable[[], None]) -> Message:
        assert self._process.stdout is not None
        while not isinstance(message := await received(self._process.stdout), kind):
            if message is None:
                raise LoadError(f"a worker process ended with {await self._process.wait()}")
            self.progress = message
            changed()
        return message

    def kill(self) -> None:
        """At once."""
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()

    async def end(self) -> None:
        """It has no more to do: closes the pipe, and does not wait long for it to notice."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            async with asyncio.timeout(2):
                await self._process.wait()
        except TimeoutError:
            self.kill()
            await self._process.wait()


@asynccontextmanager
async def start_workers(shares: Sequence[Share]) -> AsyncIterator[Sequence[WorkerProcess]]:
    """One for each share, for as long as the block runs."""
    made: list[WorkerProcess] = []
    try:
        for share in shares:
            made.append(await WorkerProcess.start(share))  # noqa: PERF401
        yield made
    finally:
        await asyncio.gather(*(worker.end() for worker in made))
