"""Says in the log which endpoints cannot be read, and never floods it."""

from __future__ import annotations

import logging
from collections.abc import Callable

from extproc.adapters.observability.logs import fields
from extproc.adapters.vllm.readings import Failure, Result

log = logging.getLogger("extproc.signals")

# In each time of this length so many lines are written, and then that there are more.
_WINDOW_SECONDS = 10.0
_LINES = 10


class FailureLog:
    """Of each endpoint each kind of failure is told once: the metrics count the others."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._told: dict[str, set[tuple[str, Result]]] = {}
        self._window_began = float("-inf")
        self._lines = 0

    def add(self, address: str, path: str, failure: Failure) -> None:
        """A reading came to nothing."""
        told = self._told.setdefault(address, set())
        if (path, failure.result) in told:
            return
        told.add((path, failure.result))
        if self._clock() >= self._window_began + _WINDOW_SECONDS:
            self._window_began = self._clock()
            self._lines = 0
        self._lines += 1
        if self._lines <= _LINES:
            why = fields(endpoint=address, path=path, result=failure.result, why=failure)
            log.warning("an endpoint does not say how it is", extra=why)
        elif self._lines == _LINES + 1:
            log.warning("more endpoints do not say how they are", extra=fields(path=path))

    def forget(self, address: str) -> None:
        """The endpoint has left."""
        self._told.pop(address, None)
