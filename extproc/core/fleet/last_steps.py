"""The beginning of the last step that an engine's metrics show.

vLLM's numbers are those of the end of its last step, and a step takes only the requests that came
before it. So the numbers do not include later ones. The engine counts its steps
(`vllm:iteration_tokens_total`), so two readings show how long each took. On average, the last one
ended half a step before the second reading.

With several engines behind one port, a report has no counter of steps, so the step is unknown.
"""

from __future__ import annotations

from math import inf
from typing import NamedTuple

from extproc.core.fleet.report import Report


class _Reading(NamedTuple):
    """A reading of the counter, and the last step before it."""

    at: float
    steps: float
    began: float
    ended: float
    is_idle: bool


class LastSteps:
    """The last known step of each endpoint, by address."""

    def __init__(self) -> None:
        self._readings: dict[str, _Reading] = {}

    def read(self, address: str, report: Report, now: float) -> float | None:
        """Return when the last step in a reading probably began; None if unknown."""
        if report.steps is None:
            return None
        steps, is_idle = report.steps.steps, not (report.load.waiting or report.running)
        before = self._readings.get(address)
        if before is None:
            self._readings[address] = _Reading(now, steps, -inf, -inf, is_idle)
            return None
        began, ended = before.began, before.ended
        new, seconds = steps - before.steps, now - before.at
        if new > 0:
            began = ended if new == 1 else now - 1.5 * seconds / new
            if before.is_idle:
                began = max(began, before.at)
            ended = now - 0.5 * seconds / new
        self._readings[address] = _Reading(now, steps, began, ended, is_idle)
        return began if began > -inf else None

    def forget(self, address: str) -> None:
        """Forget an endpoint that left or restarted."""
        self._readings.pop(address, None)
