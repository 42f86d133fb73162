"""Logs endpoints that cannot be read, with a limit on the number of lines."""

from __future__ import annotations

import logging
from collections.abc import Callable

from extproc.adapters.observability.logs import fields
from extproc.adapters.vllm.readings import Failure, Result

log = logging.getLogger("extproc.signals")

# In each window, at most _LINES lines are written, and then one that says that there are more.
_WINDOW_SECONDS = 10.0
_LINES = 10


class FailureLog:
    """Logs each kind of failure of an endpoint once; the metrics count all of them."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._logged: dict[str, set[tuple[str, Result]]] = {}
        self._window_began = float("-inf")
        self._lines = 0

    def add(self, address: str, path: str, failure: Failure) -> None:
        """Log a failed reading, unless its kind was logged for this endpoint."""
        logged = self._logged.setdefault(address, set())
        if (path, failure.result) in logged:
            return
        logged.add((path, failure.result))
        if self._clock() >= self._window_began + _WINDOW_SECONDS:
            self._window_began = self._clock()
            self._lines = 0
        self._lines += 1
        if self._lines <= _LINES:
            why = fields(endpoint=address, path=path, result=failure.result, why=failure)
            log.warning("endpoint not readable", extra=why)
        elif self._lines == _LINES + 1:
            log.warning("more endpoints not readable", extra=fields(path=path))

    def forget(self, address: str) -> None:
        """Forget the failures of an endpoint that left."""
        self._logged.pop(address, None)
