"""A pace that leaves the event loop most of a processor's time."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter, sleep

_WORK_SECONDS = 0.001
"""Shortest time of work before a wait. The event loop may have to wait for one step longer."""

_WAIT_RATIO = 9
"""Waits in multiples of the time of work: the work gets a tenth of a processor's time."""


class Pace:
    """Waits after each millisecond of a thread's work, so that the event loop can run.

    Without waits, the thread and the event loop would compete for the interpreter, and every system
    call of the event loop could cost it five milliseconds.
    """

    def __init__(
        self, clock: Callable[[], float] = perf_counter, wait: Callable[[float], None] = sleep
    ) -> None:
        self._clock = clock
        self._wait = wait
        self._began = clock()

    def __call__(self) -> None:
        """Wait if the work since the last wait took long enough."""
        worked = self._clock() - self._began
        if worked >= _WORK_SECONDS:
            self._wait(worked * _WAIT_RATIO)
            self._began = self._clock()
