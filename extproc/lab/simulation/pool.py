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

_REPORT_EVERY = 200
"""Requests per progress report. Each report costs some microseconds in two processes."""

_POLL_SECONDS = 0.1

_progress: Queue[tuple[int, int]]


def simulate_all(
    scenarios: Sequence[Scenario], progress: OnProgress = lambda number, more: None
) -> list[Run]:
    """Return the runs of all scenarios, in their order."""
    reported: Queue[tuple[int, int]] = context().Queue()
    with workers(len(scenarios), partial(_start, reported)) as pool:
        runs = [pool.submit(_simulate, number, one) for number, one in enumerate(scenarios)]
        _wait(runs, reported, progress)
        return [run.result() for run in runs]


def _wait(
    runs: Sequence[Future[Run]], reported: Queue[tuple[int, int]], progress: OnProgress
) -> None:
    pending = set(runs)
    while pending:
        done, pending = wait(pending, _POLL_SECONDS, FIRST_COMPLETED)
        for run in done:
            run.result()  # raises the first error at once
        while True:
            try:
                progress(*reported.get_nowait())
            except Empty:
                break


def _start(reported: Queue[tuple[int, int]]) -> None:
    global _progress
    _progress = reported


def _simulate(number: int, scenario: Scenario) -> Run:
    answered = 0

    def report(more: int) -> None:
        nonlocal answered
        answered += more
        if answered >= _REPORT_EVERY:
            _progress.put((number, answered))
            answered = 0

    run = simulate(scenario, report)
    _progress.put((number, answered))
    return run
