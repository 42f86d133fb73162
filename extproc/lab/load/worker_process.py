"""One worker process, from the parent's side.

Each worker has its own process group, so that Ctrl-C at a terminal reaches only the parent, which
then requests the results. A worker ends when its pipe is closed, so none is left even if the parent
is killed.
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
    """Raised if the load generator itself fails."""


class WorkerProcess:
    """A child process that sends a share of the requests."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.progress = Progress(0, 0, 0, 0)

    @classmethod
    async def start(cls, share: Share) -> WorkerProcess:
        """Start a worker process and send it its share."""
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
        """Send a message; the pipe keeps it until the worker reads it."""
        assert self._process.stdin is not None
        self._process.stdin.write(packed(message))

    async def ready(self) -> None:
        """Wait until the worker can begin a phase. Raises LoadError."""
        await self._until(Ready, lambda: None)

    async def result(self, changed: Callable[[], None]) -> Result:
        """Wait for the result of a phase; call `changed` on progress. Raises LoadError."""
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
        """Kill the process."""
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()

    async def end(self) -> None:
        """Close the pipe, which ends the process; kill it after two seconds."""
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
    """Run one worker process for each share during a `with` block."""
    made: list[WorkerProcess] = []
    try:
        for share in shares:
            made.append(await WorkerProcess.start(share))  # noqa: PERF401
        yield made
    finally:
        await asyncio.gather(*(worker.end() for worker in made))
