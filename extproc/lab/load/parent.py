"""Has the worker processes begin together, and end together, and collects their figures."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from time import monotonic
from typing import Any

from extproc.lab.load.messages import Begin, Progress, Result, Stop
from extproc.lab.load.shares import Plan
from extproc.lab.load.worker_process import LoadError, WorkerProcess, start_workers

_LEAD_SECONDS = 0.25
"""From the order to begin to the beginning: it has reached all by then, and thousands of
places stand ready."""

_HAND_IN_SECONDS = 20
"""For figures, once they are asked for."""

_HOPELESS = 100
"""Failures without one success after which there is no point in going on."""

Report = Callable[[Progress], None]


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

    def signalled(self, workers: Sequence[WorkerProcess]) -> None:
        """Who sends a second signal does not want to wait for figures."""
        self.signals += 1
        self.ask("interrupted")
        if self.signals > 1:
            for worker in workers:
                worker.kill()


@dataclass(frozen=True)
class Collected:
    """What the workers handed in."""

    results: Sequence[Result]
    """Of the measurement; none if it did not come to that."""

    warm_up: Sequence[Result]
    """Of what came before it."""

    reason: str
    """Why it ended before its time; "" where it did not."""

    interrupted: bool
    """Whether a signal did that."""


async def run(plan: Plan, begins: Callable[[int], None], report: Report) -> Collected:
    """Runs all phases. `begins` is told of each, `report` how it goes. Raises LoadError."""
    ending = Ending()
    async with start_workers(plan.shares) as workers, _signals(partial(ending.signalled, workers)):
        phases: list[Sequence[Result]] = []
        try:
            for number in range(len(plan.phases)):
                if not await _all_ready(workers, ending):
                    break
                begins(number)
                phases.append(await _phase(workers, ending, report))
        except LoadError:
            if ending.signals < 2:
                raise
        phases += [()] * (len(plan.phases) - len(phases))
        *before, measured = phases
        warm_up = [result for phase in before for result in phase]
        return Collected(measured, warm_up, ending.reason, ending.signals > 0)


async def _all_ready(workers: Sequence[WorkerProcess], ending: Ending) -> bool:
    """Waits for the workers' preparations; False if it was called off."""
    ready = asyncio.gather(*(worker.ready() for worker in workers))
    asked = asyncio.create_task(ending.asked.wait())
    both: list[asyncio.Future[Any]] = [ready, asked]
    await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
    asked.cancel()
    if ending.asked.is_set():
        ready.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await ready
    return not ending.asked.is_set()


async def _phase(
    workers: Sequence[WorkerProcess], ending: Ending, report: Report
) -> Sequence[Result]:
    def changed() -> None:
        total = _total([worker.progress for worker in workers])
        report(total)
        if not total.succeeded and total.failed >= _HOPELESS:
            ending.ask(f"given up: the first {total.failed} requests failed")

    begin = Begin(monotonic() + _LEAD_SECONDS)
    for worker in workers:
        worker.progress = Progress(0, 0, 0, 0)
        worker.send(begin)
    stopping = asyncio.create_task(_stop(workers, ending))
    try:
        return await asyncio.gather(*(worker.result(changed) for worker in workers))
    finally:
        stopping.cancel()


async def _stop(workers: Sequence[WorkerProcess], ending: Ending) -> None:
    """Asks for what there is when that is wanted, and does not wait for ever."""
    await ending.asked.wait()
    for worker in workers:
        worker.send(Stop())
    await asyncio.sleep(_HAND_IN_SECONDS)
    for worker in workers:
        worker.kill()


def _total(parts: Sequence[Progress]) -> Progress:
    return Progress(
        sum(part.succeeded for part in parts),
        sum(part.failed for part in parts),
        sum(part.in_flight for part in parts),
        sum(part.tokens for part in parts),
    )


@asynccontextmanager
async def _signals(act: Callable[[], None]) -> AsyncIterator[None]:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, act)
    yield
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.remove_signal_handler(number)
