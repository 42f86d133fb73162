"""When the last step began that an engine's metrics show.

vLLM's numbers are those of the end of its last step, and a step takes only the requests that came
before it. So the numbers do not include later ones. The engine counts its steps
(`vllm:iteration_tokens_total`), so two readings show how long each took. On average, the last one
ended half a step before the second reading.

The counter of data parallel engines behind one port has the steps of all of them. Then their steps
seem shorter than they are, and some requests seem to be in numbers that do not include them yet.
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


class LastSteps:
    """The last known step of each endpoint, by address."""

    def __init__(self) -> None:
        self._readings: dict[str, _Reading] = {}

    def read(self, address: str, report: Report, now: float) -> float | None:
        """Return when the last step in a reading probably began; None if unknown."""
        if report.steps is None:
            return None
        steps = report.steps.steps
        before = self._readings.get(address)
        if before is None:
            self._readings[address] = _Reading(now, steps, -inf, -inf)
            return None
        began, ended = before.began, before.ended
        new, seconds = steps - before.steps, now - before.at
        if new > 0:
            began = ended if new == 1 else now - 1.5 * seconds / new
            ended = now - 0.5 * seconds / new
        self._readings[address] = _Reading(now, steps, began, ended)
        return began

    def forget(self, address: str) -> None:
        """Forget an endpoint that left or restarted."""
        self._readings.pop(address, None)
