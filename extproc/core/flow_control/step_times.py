"""The durations of an engine's steps, learned from its counters or from the ends of responses.

Responses end with steps, so the time between two ends is the time of one or several steps. Few of
these times are shorter than a step without prompts, so that is a low quantile of them:

    seconds of a step = base + per_token * prompt tokens

An engine that counts its steps reports their seconds and their prompt tokens between two readings,
and least squares give both values at once. Otherwise, `per_token` comes from the ends, too:
sometimes a step's prompts are known: those that were sent during the step before, if two ends show
where it began. The time until the next end then gives `per_token`. It is too long if a step without
an end follows, but then it differs each time. The most frequent value is right.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from math import ceil

LONGEST_STEP_SECONDS = 2.0
"""Times between ends that are longer than this contain many steps, and say nothing."""

_FEWEST_GAPS = 8
_FEWEST_COSTS = 3
_GAPS = 64
"""Latest times between ends that count."""
_COSTS = 32
"""Latest times of a prompt token that count."""
_FEWEST_READINGS = 8
_READINGS = 16
"""Latest readings that count."""
_SAME = 0.02
"""Readings in which all steps have about the same tokens say nothing."""
_LOW = 1 / 16
"""The quantile that is a step without prompts."""
_FREQUENT = 1 / 4
"""Share of the values that are close to the most frequent one."""


class StepTimes:
    """The durations of one engine's steps, or of all engines' steps."""

    def __init__(self, every: StepTimes | None = None) -> None:
        """`every` are those of all engines, which count until enough is known of this one."""
        self.base = 0.0
        """Seconds of a step without prompts; 0 while unknown."""
        self.per_token = 0.0
        """Seconds of each prompt token."""
        self._every = every
        self._gaps: deque[float] = deque(maxlen=_GAPS)
        self._costs: deque[float] = deque(maxlen=_COSTS)
        self._readings: deque[tuple[float, float, float]] = deque(maxlen=_READINGS)
        """The steps, their seconds and their prompt tokens between two readings."""

    @property
    def is_own(self) -> bool:
        """True if they come from this engine's steps only."""
        return len(self._gaps) == _GAPS or len(self._readings) >= _FEWEST_READINGS

    def of(self, tokens: float) -> float:
        """Return the seconds of a step that computes this number of prompt tokens."""
        return self.base + self.per_token * tokens

    def learn(self, seconds: float, tokens: float) -> None:
        """Take the time between two ends, and the prompt tokens of the step after the first end.

        The tokens are 0 if they are not known.
        """
        if seconds > LONGEST_STEP_SECONDS:
            return
        self._gaps.append(seconds)
        if self._every is not None:
            self._every._gaps.append(seconds)
        gaps = self._gaps
        if self._every is not None and len(gaps) < _GAPS:
            gaps = self._every._gaps
        if len(gaps) >= _FEWEST_GAPS and not self._readings:
            self.base = sorted(gaps)[int(_LOW * len(gaps))]
            self._learn_prompts(seconds, tokens)

    def read(self, steps: float, seconds: float, tokens: float) -> None:
        """Take the number, the seconds and the prompt tokens of some steps, as the engine counts.

        They are exact, so from now on the times between ends do not count.
        """
        self._readings.append((steps, seconds, tokens))
        readings = self._readings
        if self._every is not None:
            self._every._readings.append((steps, seconds, tokens))
            if len(readings) < _FEWEST_READINGS:
                readings = self._every._readings
        fitted = _fit(readings)
        if fitted is not None:
            self.base, self.per_token = fitted

    def _learn_prompts(self, seconds: float, tokens: float) -> None:
        if tokens:
            cost = max(seconds - self.base, 0.0) / tokens
            self._costs.append(cost)
            if self._every is not None:
                self._every._costs.append(cost)
        costs = self._costs
        if self._every is not None and len(costs) < _COSTS:
            costs = self._every._costs
        if len(costs) >= _FEWEST_COSTS:
            self.per_token = most_frequent(costs)


def _fit(readings: Sequence[tuple[float, float, float]]) -> tuple[float, float] | None:
    """Return seconds of a step and of a prompt token with the least squared errors, if positive."""
    square = sum(steps * steps for steps, _, _ in readings)
    both = sum(steps * tokens for steps, _, tokens in readings)
    prompts = sum(tokens * tokens for _, _, tokens in readings)
    by_step = sum(steps * seconds for steps, seconds, _ in readings)
    by_token = sum(tokens * seconds for _, seconds, tokens in readings)
    spread = square * prompts - both * both
    if spread <= _SAME * square * prompts:
        return None
    base = (prompts * by_step - both * by_token) / spread
    per_token = (square * by_token - both * by_step) / spread
    return (base, max(per_token, 0.0)) if base > 0 else None


def most_frequent(values: Sequence[float]) -> float:
    """Return the median of the quarter of the values that is closest together."""
    ordered = sorted(values)
    size = min(max(_FEWEST_COSTS, ceil(len(ordered) * _FREQUENT)), len(ordered))
    starts = range(len(ordered) - size + 1)
    start = min(starts, key=lambda one: ordered[one + size - 1] - ordered[one])
    return ordered[start + size // 2]
