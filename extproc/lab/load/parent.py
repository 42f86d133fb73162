"""Starts the worker processes, has them begin together, and puts their figures together.

Theory of operation. A worker is a process group of its own, so that Ctrl-C at a terminal reaches
only this process, which asks for what there is. A worker whose pipe is closed ends: that is how
none is left behind, even where this process is killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from time import monotonic
from typing import Any, TypeVar

from extproc.lab.load.messages import Begin, Progress, Ready, Result, Stop, packed, received
from extproc.lab.load.shares import Plan, Share

_LEAD_SECONDS = 0.05
"""From the order to begin to the beginning, so that it has reached all."""

_HAND_IN_SECONDS = 20
"""For figures, once they are asked for."""

_HOPELESS = 100
"""Failures without one success after which there is no point in going on."""

Report = Callable[[Progress], None]
Message = TypeVar("Message")


class LoadError(Exception):
    """The load generator itself failed."""


class Ending:
    """Why a run ends before its time, if it does."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.reason = ""
        self.signals = 0

    def ask(self, reason: str) -> None:
        """The first reason counts."""
        self.reason = self.reason or reason
        self.asked.set()

    def signalled(self, hands: Sequence[_Hand]) -> None:
        """Who sends a second signal does not want to wait for figures."""
        self.signals += 1
        self.ask("interrupted")
        if self.signals > 1:
            for hand in hands:
                hand.kill()


@dataclass(frozen=True)
class Collected:
    """What the workers handed in of the measurement."""

    results: Sequence[Result]
    reason: str
    """Why it ended before its time; "" where it did not."""

    interrupted: bool
    """Whether a signal did that."""


class _Hand:
    """One worker process, seen from here."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.progress = Progress(0, 0, 0, 0)

    @classmethod
    async def start(cls, share: Share) -> _Hand:
        """With its share."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "extproc.lab.load.worker"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            process_group=0,
        )
        hand = cls(process)
        hand.tell(share)
        return hand

    def tell(self, message: object) -> None:
        """Writes to it; what it does not read is kept for it."""
        assert self._process.stdin is not None
        self._process.stdin.write(packed(message))

    async def ready(self) -> None:
        """Waits until it can begin. Raises LoadError."""
        await self._until(Ready, lambda: None)

    async def result(self, changed: Callable[[], None]) -> Result:
        """What it hands in; `changed` is called when it told how it goes. Raises LoadError."""
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


async def run(plan: Plan, begins: Callable[[int], None], report: Report) -> Collected:
    """Runs all phases. `begins` is told of each, `report` how it goes. Raises LoadError."""
    ending = Ending()
    async with _hands(plan.shares) as hands, _signals(partial(ending.signalled, hands)):
        results: Sequence[Result] = []
        try:
            for number in range(len(plan.phases)):
                results = []
                if not await _all_ready(hands, ending):
                    break
                begins(number)
                results = await _phase(hands, ending, report)
        except LoadError:
            if ending.signals < 2:
                raise
        return Collected(results, ending.reason, ending.signals > 0)


async def _all_ready(hands: Sequence[_Hand], ending: Ending) -> bool:
    """Waits for the workers' preparations; False if it was called off."""
    ready = asyncio.gather(*(hand.ready() for hand in hands))
    asked = asyncio.create_task(ending.asked.wait())
    both: list[asyncio.Future[Any]] = [ready, asked]
    await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
    asked.cancel()
    if ready.done():
        ready.result()
    else:
        ready.cancel()
    return not ending.asked.is_set()


async def _phase(hands: Sequence[_Hand], ending: Ending, report: Report) -> Sequence[Result]:
    def changed() -> None:
        total = _total([hand.progress for hand in hands])
        report(total)
        if not total.succeeded and total.failed >= _HOPELESS:
            ending.ask(f"given up: the first {total.failed} requests failed")

    begin = Begin(monotonic() + _LEAD_SECONDS)
    for hand in hands:
        hand.progress = Progress(0, 0, 0, 0)
        hand.tell(begin)
    stopping = asyncio.create_task(_stop(hands, ending))
    try:
        return await asyncio.gather(*(hand.result(changed) for hand in hands))
    finally:
        stopping.cancel()


async def _stop(hands: Sequence[_Hand], ending: Ending) -> None:
    """Asks for what there is when that is wanted, and does not wait for ever."""
    await ending.asked.wait()
    for hand in hands:
        hand.tell(Stop())
    await asyncio.sleep(_HAND_IN_SECONDS)
    for hand in hands:
        hand.kill()


def _total(parts: Sequence[Progress]) -> Progress:
    return Progress(
        sum(part.succeeded for part in parts),
        sum(part.failed for part in parts),
        sum(part.in_flight for part in parts),
        sum(part.tokens for part in parts),
    )


@asynccontextmanager
async def _hands(shares: Sequence[Share]) -> AsyncIterator[Sequence[_Hand]]:
    hands: list[_Hand] = []
    try:
        for share in shares:
            hands.append(await _Hand.start(share))  # noqa: PERF401
        yield hands
    finally:
        await asyncio.gather(*(hand.end() for hand in hands))


@asynccontextmanager
async def _signals(act: Callable[[], None]) -> AsyncIterator[None]:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, act)
    yield
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.remove_signal_handler(number)
