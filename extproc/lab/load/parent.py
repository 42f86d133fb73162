"""Starts and stops the worker processes together, and collects their results."""

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
"""Seconds from sending `Begin` to the start of a phase, so that all workers are ready by then."""

_HAND_IN_SECONDS = 20
"""Seconds that workers have to send their results after `Stop`."""

_HOPELESS = 100
"""Failures without a success after which the run is given up."""

Report = Callable[[Progress], None]


class Ending:
    """The early end of a run, and its reason."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.reason = ""
        self.signals = 0

    def ask(self, reason: str) -> None:
        """Request an early end. Only the first reason is kept."""
        self.reason = self.reason or reason
        self.asked.set()

    def signalled(self, workers: Sequence[WorkerProcess]) -> None:
        """Handle a signal. A second one kills the workers without waiting for results."""
        self.signals += 1
        self.ask("interrupted")
        if self.signals > 1:
            for worker in workers:
                worker.kill()


@dataclass(frozen=True)
class Collected:
    """The results of all workers."""

    results: Sequence[Result]
    """Results of the measurement; empty if it did not begin."""

    warm_up: Sequence[Result]
    """Results of the warm-up."""

    reason: str
    """Reason of an early end; empty without one."""

    interrupted: bool
    """True if a signal ended the run."""


async def run(plan: Plan, begins: Callable[[int], None], report: Report) -> Collected:
    """Run all phases; call `begins` for each, and `report` with progress. Raises LoadError."""
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
    """Wait until all workers are ready; return False after a request to end."""
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
    """Stop the workers after a request to end, and kill them if they send no results."""
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
