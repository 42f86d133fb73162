"""Concurrent simulations, one process for each core."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from functools import partial
from multiprocessing.queues import Queue
from queue import Empty

from extproc.lab.measures.run import Run
from extproc.lab.simulation.simulation import Scenario, simulate
from extproc.lab.simulation.workers import context, workers

OnProgress = Callable[[int, int], None]
"""Called with the scenario's number and its newly answered requests."""

_TOLD_EVERY = 200
"""Requests per progress report. Each report costs some microseconds in two processes."""

_POLL_SECONDS = 0.1

_progress: Queue[tuple[int, int]]


def simulate_all(
    scenarios: Sequence[Scenario], progress: OnProgress = lambda number, more: None
) -> list[Run]:
    """Return the runs of all scenarios, in their order."""
    told: Queue[tuple[int, int]] = context().Queue()
    with workers(len(scenarios), partial(_start, told)) as pool:
        runs = [pool.submit(_simulate, number, one) for number, one in enumerate(scenarios)]
        _wait(runs, told, progress)
        return [run.result() for run in runs]


def _wait(runs: Sequence[Future[Run]], told: Queue[tuple[int, int]], progress: OnProgress) -> None:
    pending = set(runs)
    while pending:
        done, pending = wait(pending, _POLL_SECONDS, FIRST_COMPLETED)
        for run in done:
            run.result()  # raises the first error at once
        while True:
            try:
                progress(*told.get_nowait())
            except Empty:
                break


def _start(told: Queue[tuple[int, int]]) -> None:
    global _progress
    _progress = told


def _simulate(number: int, scenario: Scenario) -> Run:
    answered = 0

    def tell(more: int) -> None:
        nonlocal answered
        answered += more
        if answered >= _TOLD_EVERY:
            _progress.put((number, answered))
            answered = 0

    run = simulate(scenario, tell)
    _progress.put((number, answered))
    return run
