"""The steps of an engine by its own counters.

vLLM counts steps (`vllm:iteration_tokens_total`) and the times between the tokens of each request
(`vllm:inter_token_latency_seconds`) at the end of each step. A time between two tokens is the time
of a step, so their mean and the number of steps give the time of all steps between two readings.
"""

from __future__ import annotations

from math import inf
from typing import NamedTuple

from extproc.core.fleet.report import StepTotals
from extproc.core.flow_control.step_times import LONGEST_STEP_SECONDS

_SLACK_SECONDS = 0.05
"""Steps may seem to take this much longer than the time between two readings."""


class StepsRead(NamedTuple):
    """The steps between two readings."""

    since: float
    """When the first reading was."""
    steps: int
    """Steps that have ended."""
    seconds: float
    """Their time; 0 if it is not known."""
    error: float
    """The error of that time. The counters weigh each step by its batch, which changes."""
    tokens: float
    """Prompt tokens that they computed."""


class StepBegin(NamedTuple):
    """The beginning of a step, as far as it is known."""

    before: float
    """When the step before it began."""
    at: float
    spread: float
    """It may be this much earlier or later."""


_UNKNOWN = StepBegin(0.0, 0.0, inf)


class StepCounts:
    """The latest counters, and what was seen since."""

    def __init__(self) -> None:
        self.ended = 0
        """Steps that have probably ended since the last reading."""
        self.is_known = False
        """True if that number is known."""
        self.has_seen = False
        """True if the beginning of a step was seen since the last reading."""
        self.anchor = _UNKNOWN
        """The step at the time of the last reading."""
        self._totals: StepTotals | None = None
        self._at = -inf

    def read(self, totals: StepTotals, at: float) -> StepsRead | None:
        """Take counters. Return the steps since the last reading; None if there is none."""
        last, self._totals = self._totals, totals
        since, self._at = self._at, at
        if last is None or totals.steps < last.steps or at > since + LONGEST_STEP_SECONDS:
            self.next(_UNKNOWN)
            return None
        steps = int(totals.steps - last.steps)
        times = totals.times - last.times
        seconds = steps * (totals.seconds - last.seconds) / times if times > 0 else 0.0
        if seconds - seconds / max(steps, 1) > at - since + _SLACK_SECONDS:
            self.next(_UNKNOWN)  # several processes count the same steps
            return None
        error = seconds * steps / times if steps > 1 and times > 0 else 0.0
        tokens = max(totals.computed - last.computed, 0.0)
        return StepsRead(since, steps, seconds, error, tokens)

    def next(self, anchor: StepBegin) -> None:
        """Begin to count the steps after a reading. The present step is `anchor`."""
        self.anchor = anchor
        self.ended, self.is_known, self.has_seen = 0, True, False
