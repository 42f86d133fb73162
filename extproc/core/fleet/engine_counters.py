"""The shortest times of one engine for a step and for a prompt token, by its own counters.

vLLM counts the times between the tokens of each request, which are the times of steps. It also
counts the time to each first token, and when a request finishes, the time from its first step to
its first token. Both are times of prompts:

    step   = the shortest mean time between tokens
    token  = the shortest (time of prompts - number of prompts * step) / computed tokens

Long contexts, a queue, and prompts in the same step make both longer and never shorter. So the
shortest of many readings is the engine's own time. The computed tokens may include those of prompts
that have no first token yet. Then all time between two readings counts at least. A new endpoint may
have computed prompts in all of its steps. So the first steps count as at most 250 prompt tokens.

The first prompts of an engine may take longer than later ones, or something may delay them. So its
times are compared with those of others only after several readings of prompts. If all prompts are
short or cached, its steps are compared after more readings.
"""

from __future__ import annotations

from collections import deque
from math import inf
from typing import NamedTuple

from extproc.core.fleet.report import PrefillTotals, Report, StepTotals
from extproc.core.fleet.rolling_minimum import RollingMinimum

LEAST_TIMES = 8.0
"""Times between tokens of which a mean is taken at least."""

LEAST_MEANS = 2
"""Such means from which the shortest one counts: a single one may be of a long prompt."""

LEAST_READINGS = 4
"""Readings of prompts after which an endpoint is compared with others. One prompt may have two.
With 4, mean TTFT is 2.4 % shorter than with 1 on 40 random trials in which the first prompt of each
engine takes longer (exponentially distributed, 2 seconds on average). If none does, it is 0.3 %
longer, because differences between GPUs are known later."""

LEAST_TOKENS = 100.0
"""Mean tokens of prompts from which their time is not only that of a step."""

MOST_STEP_TOKENS = 250.0
"""Prompt tokens that take as long as a step, at most, while few means are known: the first steps
may have had prompts. In the laboratory's profiles, the base of a step takes the time of 70 to 230
tokens."""

FEW_MEANS = 20
"""Mean times between tokens up to which this limit holds. On other engines, a step may take as long
as more tokens. After more, an endpoint is compared by its steps if few prompts are known."""

_SHORTEST, _LONGEST = 1e-9, 1e3
"""Seconds beyond which a step or a token is not plausible."""

_LEAST_SHARE = 0.5
"""Share of the time of prompts that is due to their tokens, at least. A GPU computes few tokens
while it reads its weights, so a step with a short prompt takes hardly longer than one without."""

_READINGS = 64
"""Latest readings of prompts that count. One scrape may have two."""

_WINDOW_SECONDS = 300.0
"""Seconds for which the shortest time counts, at least: a GPU may become slower."""


class Times(NamedTuple):
    """The times of an engine without other load."""

    step: float
    """Seconds of a step that computes no prompt; infinite if unknown."""

    token: float
    """Seconds that a step takes longer for each prompt token; infinite if unknown."""


UNKNOWN = Times(inf, inf)
"""The times of an engine without readings."""


class _FirstTokens(NamedTuple):
    """The prompts with first tokens at one reading."""

    at: float
    """The time of the reading."""

    totals: PrefillTotals

    in_prefill: float | None
    """Requests without a first token, if known."""

    preemptions: float | None

    def since(self, before: _FirstTokens) -> PrefillTotals:
        """Return the prompts after another reading.

        Their tokens may be those of other prompts, too: of long ones that are computed in part, or
        of preempted requests. Then the time between the readings counts at least. Only the step
        during the first reading may have begun earlier.
        """
        new = _difference(before.totals, self.totals)
        if before.in_prefill == self.in_prefill == 0 and before.preemptions == self.preemptions:
            return new
        return new._replace(seconds=max(new.seconds, self.at - before.at))


class EngineCounters:
    """The readings of one engine's counters."""

    __slots__ = (
        *("_counts_cached", "_first_tokens", "_means", "_prefills", "_readings"),
        *("_shortest", "_step", "_steps", "room", "times"),
    )

    def __init__(self) -> None:
        self.room = 0
        """Blocks of its cache."""
        self.times = UNKNOWN
        """The shortest times so far."""
        self._steps: StepTotals | None = None
        self._first_tokens: _FirstTokens | None = None
        self._counts_cached = False
        self._prefills: PrefillTotals | None = None
        self._step = inf
        self._means = 0
        self._shortest = RollingMinimum(_WINDOW_SECONDS)
        self._readings: deque[PrefillTotals] = deque(maxlen=_READINGS)

    @property
    def compared(self) -> Times:
        """The times that may be compared with those of other endpoints."""
        if len(self._readings) >= LEAST_READINGS:
            return self.times
        return Times(self.times.step, inf) if self._means > FEW_MEANS else UNKNOWN

    def read(self, report: Report, in_prefill: float | None, now: float) -> None:
        """Take a reading with `in_prefill` requests without a first token; None if unknown."""
        self.room = report.blocks or 0
        changed = self._read_steps(report.steps, now)
        responded, self._first_tokens = self._first_tokens, self._responded(report, in_prefill, now)
        if responded is not None and self._first_tokens is not None:
            changed |= self._read_prompts(self._first_tokens.since(responded))
        before, self._prefills = self._prefills, report.prefills
        # Without the steps, several engines may compute prompts at once.
        if report.steps is not None and before is not None and self._prefills is not None:
            changed |= self._read_prompts(_difference(before, self._prefills))
        if changed:
            self.times = self._shortest_times()

    def _shortest_times(self) -> Times:
        step = self._step
        if self._means <= FEW_MEANS:
            # With the step, so that it is no less than the engine's own time of a token.
            token = min([one.seconds / one.tokens for one in self._readings], default=inf)
            step = min(step, MOST_STEP_TOKENS * token)
        tokens = [_seconds_each(one, step) for one in self._readings if step < inf]
        return Times(step, min(tokens, default=inf))

    def _responded(
        self, report: Report, in_prefill: float | None, now: float
    ) -> _FirstTokens | None:
        """Return the prompts that have their first tokens; None if unknown.

        Older releases of vLLM count cached tokens as computed in steps, which shows in their sum.
        """
        prompts, seconds = report.first_tokens, report.first_token_seconds
        computed = report.computed_tokens
        if prompts is None or seconds is None or computed is None or report.steps is None:
            return None
        tokens = report.steps.computed
        if tokens > computed and not self._counts_cached:
            self._counts_cached = True
            self._readings.clear()
            self.times = self._shortest_times()
        if self._counts_cached:
            return None
        totals = PrefillTotals(prompts, seconds, tokens)
        return _FirstTokens(now, totals, in_prefill, report.preemptions)

    def _read_steps(self, totals: StepTotals | None, now: float) -> bool:
        """Return True if the time of a step is known better now."""
        before = self._steps
        if before is None or totals is None or totals.times < before.times:
            self._steps = totals
            return False
        times = totals.times - before.times
        if times < LEAST_TIMES:
            return False
        self._steps = totals
        mean = (totals.seconds - before.seconds) / times
        if not _SHORTEST < mean < _LONGEST:
            return False
        self._means += 1
        step = self._shortest.add(mean, now)
        if self._means < LEAST_MEANS:
            return False
        self._step = step
        return True

    def _read_prompts(self, new: PrefillTotals) -> bool:
        """Return True if there were prompts with enough tokens and a plausible time."""
        if new.tokens < LEAST_TOKENS * new.prompts or new.prompts <= 0:
            return False
        if not _SHORTEST < new.seconds / new.tokens < _LONGEST:
            return False
        self._readings.append(new)
        return True


def _difference(before: PrefillTotals, after: PrefillTotals) -> PrefillTotals:
    """Return the prompts between two readings."""
    return PrefillTotals(*(new - old for new, old in zip(after, before, strict=True)))


def _seconds_each(prompts: PrefillTotals, step: float) -> float:
    """Return the seconds of each token of these prompts."""
    seconds = max(prompts.seconds - prompts.prompts * step, _LEAST_SHARE * prompts.seconds)
    return seconds / prompts.tokens
