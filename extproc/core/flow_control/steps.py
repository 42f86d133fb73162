"""The present steps of the engines, and when they probably end.

A request waits in an engine until the present step ends. A request that is sent just before that
waits no longer than one that was sent at once. So requests of a lower class, or of a tenant that
was served more, wait here until shortly before the step ends. If a better request comes meanwhile,
it takes the step. It goes to the endpoint where its first token is probably first.

The end of a response shows that a step has ended. From then on, the sidecar follows the steps by
their durations (`extproc.core.flow_control.step_times`) and by the prompts that it has sent. After
some steps without an end, the present step is not known, and no request waits for it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Set
from math import inf

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
_MOST_PROMPTS = 64
_LEAST_MARGIN = 0.01
"""Time between a request and the end of the step, besides the mean error of the prediction."""
_RECENT = 0.05
"""Weight of the latest error in the mean: about twenty count."""
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
        self._began = 0.0
        self._tokens = 0.0
        """Prompt tokens that the present step computes."""
        self._ends = 0.0
        self._steps = _MOST_STEPS
        """Steps since a response ended."""
        self._sent: deque[tuple[float, float]] = deque()
        """When each prompt was sent, and its tokens, since a response ended."""
        self._taken = 0
        """Number of these prompts that steps have taken."""
        self._error = _LEAST_MARGIN
        self._waits = False
        """True if a request waits for the end of the present step."""
        self._missed = 0
        """Steps that ended earlier than predicted while one waited."""

    def sent(self, tokens: float, now: float) -> None:
        """Record a prompt with this number of tokens to compute."""
        self._follow(now)
        self._waits, self._missed = False, 0
        if len(self._sent) == _MOST_PROMPTS:
            self._sent.popleft()
            self._taken = max(self._taken - 1, 0)
        self._sent.append((now, tokens))

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
        taken = self._take(now)
        self._known = 0.0
        if seconds < _ONE_STEP * self.times.base:
            self._known = sum(tokens for at, tokens in self._sent if at <= _before(now))
        self._tokens = self._known or (self._tokens + taken if has_begun else taken)
        self._forget(now)
        self._missed += self._waits
        self._waits = False
        self._began = self._ended_at = now
        self._ends = now + self.times.of(self._tokens)
        self._steps = 0

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

    def took(self, now: float) -> float | None:
        """Return until when prompts were sent that are surely in the engine's batch, if known."""
        self._follow(now)
        times = self.times
        is_sure = times.is_own and self._error < _SURE * times.base and self._steps <= _SURE_STEPS
        return _before(self._began) if is_sure else None

    def _follow(self, now: float) -> None:
        """Follow the steps that have begun since the last time."""
        while self.times.base and self._steps < _MOST_STEPS and self._ends <= now:
            self._began = self._ends
            self._tokens = self._take(self._began)
            self._ends = self._began + self.times.of(self._tokens)
            self._steps += 1

    def _take(self, at: float) -> float:
        """Return the tokens of the prompts that a step takes which begins at this time."""
        tokens = 0.0
        while self._taken < len(self._sent) and self._sent[self._taken][0] <= _before(at):
            tokens += self._sent[self._taken][1]
            self._taken += 1
        return tokens

    def _forget(self, now: float) -> None:
        """Forget the prompts that steps have taken."""
        while self._sent and self._sent[0][0] <= _before(now):
            self._sent.popleft()
        self._taken = 0


def _before(at: float) -> float:
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
        ends = step.ends(now)
        begins = now + step.times.base if ends is None else ends
        return begins + step.times.of(tokens)
