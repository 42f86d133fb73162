"""The present steps of the engines, and when they probably end.

A request waits in an engine until the present step ends. A request that is sent just before that
waits no longer than one that was sent at once. So requests of a lower class, or of a tenant that
was served more, wait here until shortly before the step ends. If a better request comes meanwhile,
it takes the step. It goes to the endpoint where its first token is probably first.

The end of a response shows that a step has ended. From then on, the sidecar follows the steps by
their durations (`extproc.core.flow_control.step_times`) and by the prompts that it has sent. Each
reading of the engine's counters shows how many steps have ended and how long they took, which
bounds when the present step began. After some steps without an end or a reading, the present step
is not known, and no request waits for it.

If no other endpoint begins a step soon, the next step stays free for a better request.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Set
from math import inf

from extproc.core.fleet.report import StepTotals
from extproc.core.flow_control.step_counts import StepBegin, StepCounts, StepsRead
from extproc.core.flow_control.step_times import LONGEST_STEP_SECONDS, StepTimes

SAME_STEP_SECONDS = 0.02
"""The ends of one step's responses arrive within this time."""
_ON_THE_WAY_SECONDS = 0.005
"""Time that a prompt takes to the engine, at most."""
_ONE_STEP = 1.7
"""Ratio to a step without prompts up to which a time is that of one step."""
_MOST_STEPS = 6
"""Steps without an end after which the present step is not known."""
_SURE_STEPS = 2
"""The same, after which it is known well."""
_SURE = 0.25
"""Mean error as a share of a step's duration up to which it is known well."""
_MOST_MISSED = 4
"""Steps that may end earlier than predicted while a request waits for their ends."""
_SOON = 0.5
"""Share of a step's duration within which another endpoint should begin a step."""
_MOST_PROMPTS = 64
_LEAST_MARGIN = 0.01
"""Time between a request and the end of the step, besides the mean error of the prediction."""
_RECENT = 0.05
"""Weight of the latest error in the mean: about twenty count."""
_DRIFT_SECONDS = 0.001
"""Error that the time of a step adds to the time at which the next one begins."""
_BAND_SECONDS = 0.005
"""Endpoints whose first tokens differ by less are equal."""


class Step:
    """The present step of one endpoint."""

    def __init__(self, times: StepTimes) -> None:
        self.times = times
        self._ended_at = -inf
        """When a response ended last, of the first one of its step."""
        self._known = 0.0
        """Prompt tokens of the step after that end; 0 if they are not known."""
        self._before = -inf
        """When the step before the present one began."""
        self._began = -inf
        self._ends = 0.0
        self._spread = 0.0
        """The present step may have begun this much earlier or later."""
        self._steps = _MOST_STEPS
        """Steps since one was last seen."""
        self._sent: deque[tuple[float, float]] = deque(maxlen=_MOST_PROMPTS)
        """When each prompt was sent, and its tokens."""
        self._error = _LEAST_MARGIN
        self._waits = False
        """True if a request waits for the end of the present step."""
        self._missed = 0
        """Steps that ended earlier than predicted while one waited."""
        self._free_until: float | None = None
        """When the step ends before the one that stays free; None if none did since a prompt."""
        self._counts = StepCounts()

    def sent(self, tokens: float, now: float, *, is_first: bool = False) -> None:
        """Record a prompt with this number of tokens to compute.

        `is_first` means that the engine was idle, so a step begins with this prompt.
        """
        self._follow(now)
        self._waits, self._missed, self._free_until = False, 0, None
        self._sent.append((now, tokens))
        if is_first and self.times.base:
            self._before = self._began = now
            self._ends = now + self.times.of(tokens)
            self._seen()

    def ended(self, now: float) -> None:
        """Record the end of a response."""
        if now <= self._ended_at + SAME_STEP_SECONDS:
            return
        self._follow(now)
        # The step may have begun a little earlier or later than predicted.
        half = (self._ends - self._began) / 2
        has_begun = 0 < self._steps < _MOST_STEPS and now - self._began < half
        if self._steps < _MOST_STEPS:
            error = abs(now - (self._began if has_begun else self._ends))
            self._error += _RECENT * (min(error, self.times.base) - self._error)
        seconds = now - self._ended_at
        self.times.learn(seconds, self._known)
        before = self._before if has_begun else self._began
        self._known = 0.0
        if seconds < _ONE_STEP * self.times.base or self._steps == _MOST_STEPS:
            before = self._ended_at
        if seconds < _ONE_STEP * self.times.base:
            self._known = self._between(before, now)
        self._ended_at = now
        self._missed += self._waits
        self._counts.ended += not has_begun
        self._begin(before, now)
        self._seen()

    def read(self, totals: StepTotals, at: float) -> None:
        """Take the engine's counters, as they were at this time."""
        self._follow(at)
        counts = self._counts
        read = counts.read(totals, at)
        if read is None:
            return
        if read.seconds:
            self.times.read(read.steps, read.seconds, read.tokens)
        if self.times.base:
            if not counts.has_seen:
                self._measure(read, at)
            elif counts.is_known:
                self._agree(read.steps - counts.ended, at)
            self._steps = 0
            counts.next(StepBegin(self._before, self._began, self._spread))

    def _agree(self, more: int, at: float) -> None:
        """Change the present step if more or fewer steps have ended than predicted."""
        if more < 0:
            self._began = self._before
            self._ends = at + _LEAST_MARGIN
        elif more > 0:
            self._missed += self._waits
            self._spread = _LEAST_MARGIN
            self._begin(self._began, at)

    def _measure(self, read: StepsRead, at: float) -> None:
        """Find when the present step began, by the measured seconds of the steps before it."""
        before, began, spread = self._counts.anchor
        if self._steps == _MOST_STEPS or (read.steps and not read.seconds):
            spread = inf
        spread += read.error
        low, high = began + read.seconds - spread, began + read.seconds + spread
        if read.steps:
            first = read.since - _ON_THE_WAY_SECONDS + (read.steps - 1) * self.times.base
            low, high = min(max(low, first), at), max(min(high, at), first)
            before = (low + high) / 2 - read.seconds / read.steps
        elif spread == inf:
            return
        seconds = self.times.of(self._between(before, (low + high) / 2))
        if low < at - seconds <= high:
            low = at - seconds
        self._missed += self._waits and self._counts.ended < read.steps
        self._spread = (high - low) / 2 + _DRIFT_SECONDS
        self._begin(before, (low + high) / 2)
        self._ends = max(self._ends, at + _ON_THE_WAY_SECONDS)

    def _seen(self) -> None:
        """Record that the beginning of the present step was seen."""
        self._waits = False
        self._steps, self._spread = 0, 0.0
        self._counts.has_seen = True

    def _begin(self, before: float, at: float) -> None:
        """Begin a step at this time. The step before it began at the time `before`."""
        self._before, self._began = before, at
        self._ends = at + self.times.of(self._between(before, at))

    def due(self, now: float) -> float | None:
        """Return when a request that may wait should be sent; None if the step is not known.

        None, too, if some steps have ended earlier than predicted while one waited.
        """
        ends = self.ends(now)
        if ends is None or self._missed >= _MOST_MISSED:
            return None
        at = ends - _LEAST_MARGIN - self._error
        self._waits = at > now
        return at

    def ends(self, now: float) -> float | None:
        """Return when the present step probably ends; None if it is not known."""
        self._follow(now)
        is_known = self.times.base and self._steps < _MOST_STEPS
        return self._ends if is_known and self._ends < now + LONGEST_STEP_SECONDS else None

    def next_begins(self, now: float) -> float | None:
        """Return when the step that takes a prompt of now probably begins; None if not known.

        The present step may end before the prompt arrives. Then the prompt waits for one more.
        """
        ends = self.ends(now)
        if ends is None:
            return None
        error = self._error + self._spread + _ON_THE_WAY_SECONDS
        misses = max(0.0, (now + error - ends) / (2 * error))
        return ends + misses * self.times.of(self._between(self._began, ends))

    def stays_free(self, others: float, now: float) -> bool:
        """Return True if the next step should get no request that may wait.

        The steps of other endpoints begin at the time `others` or later. One step after each such
        request may stay free.
        """
        ends = self.ends(now)
        if ends is None or others <= ends + _SOON * self.times.base:
            return False
        if self._free_until is None:
            self._free_until = ends
        return now <= self._free_until

    def took(self, now: float) -> float | None:
        """Return until when prompts were sent that are surely in the engine's batch, if known."""
        self._follow(now)
        times = self.times
        error = self._error + self._spread
        is_sure = times.is_own and error < _SURE * times.base and self._steps <= _SURE_STEPS
        return _latest(self._began) if is_sure else None

    def _follow(self, now: float) -> None:
        """Follow the steps that have begun since the last time."""
        while self.times.base and self._steps < _MOST_STEPS and self._ends <= now:
            self._begin(self._began, self._ends)
            self._steps += 1
            self._counts.ended += 1
        self._counts.is_known &= self._steps < _MOST_STEPS

    def _between(self, since: float, until: float) -> float:
        """Return the tokens of the prompts that a step takes which begins at the time `until`.

        The step before it began at the time `since`.
        """
        after, before = _latest(since), _latest(until)
        return sum(tokens for at, tokens in self._sent if after < at <= before)


def _latest(at: float) -> float:
    """Return when a prompt is sent at the latest for a step that begins at this time."""
    return at - _ON_THE_WAY_SECONDS


class Steps:
    """The present steps by endpoint address; `clock` returns seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._every = StepTimes()
        self._steps: dict[str, Step] = {}

    def of(self, address: str) -> Step:
        """Return the present step of an endpoint."""
        step = self._steps.get(address)
        if step is None:
            step = self._steps[address] = Step(StepTimes(self._every))
        return step

    def due(self, addresses: Set[str]) -> dict[str, float]:
        """Return when each endpoint should get a request that may wait.

        An endpoint whose present step is not known should get it now.
        """
        now = self._clock()
        dues = ((address, self.of(address).due(now)) for address in addresses)
        return {address: now if due is None else due for address, due in dues}

    def kept_free(self, due: Set[str], opened: Set[str]) -> Set[str]:
        """Return the endpoints that should get no request now although they are due.

        No other endpoint with room begins a step soon, so a better request would wait long.
        """
        now = self._clock()
        ends = {one: self.of(one).ends(now) for one in opened}
        free = set[str]()
        for one in due:
            at = ends.pop(one)
            others = min((at for at in ends.values() if at is not None), default=inf)
            if self.of(one).stays_free(others, now):
                free.add(one)
                ends[one] = at
        return free

    def soonest(self, addresses: Set[str], tokens: float) -> frozenset[str]:
        """Return the endpoints that probably produce the first token soonest.

        The prompt has this number of tokens to compute.
        """
        now = self._clock()
        tokens_at = {address: self._first_token(address, tokens, now) for address in addresses}
        first = min(tokens_at.values())
        return frozenset(one for one, at in tokens_at.items() if at <= first + _BAND_SECONDS)

    def keep_only(self, addresses: Set[str]) -> None:
        """Forget all other endpoints."""
        for address in self._steps.keys() - addresses:
            del self._steps[address]

    def _first_token(self, address: str, tokens: float, now: float) -> float:
        step = self.of(address)
        begins = step.next_begins(now)
        return (now + step.times.base if begins is None else begins) + step.times.of(tokens)
