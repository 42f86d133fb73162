"""The prompts that endpoints' batches have not taken yet.

An engine takes waiting prompts into its batch when a step begins, in the order of arrival. All
prompts that it takes then are computed in that step, and the step takes as long as they do. So a
request of a higher class, or of a tenant that was served less, waits for prompts that were sent
before it, although the batch has room. The order of requests only holds for those that wait here.

So an endpoint gets one prompt, or a few short ones, for each of its steps. Two events show that a
step has begun and that the engine has taken the prompts that were sent before: the end of a
response, because responses end with steps, and a reading in which fewer prompts wait. A client that
leaves looks like the end of a response; the next reading corrects this.

While requests wait here and the batch neither fills nor grows, its steps could compute more
prompts. Then the endpoint gets more for each step, until the batch is full.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Set

from extproc.core.fleet.report import Report

_FIRST_TOKENS = 512.0
"""Tokens of the prompts for one step, at first. Steps with more are much longer than without."""
_ALONE_TOKENS = 2_048.0
"""The same, at least, while no other tenant or class is active: vLLM's default for a step."""
_MOST_TOKENS = 8_192.0
"""The same, at most. From about this number, longer steps compute no more tokens a second."""
_MORE = 1.5
_LESS = 0.9

_SAME_STEP_SECONDS = 0.02
"""The ends of one step's responses arrive within this time, and so does a reading."""

_LONGEST_STEP_SECONDS = 2.0
"""Time after which a prompt that still waits does not wait for the next step, but for room."""

_FILLING_SECONDS = 2.0
"""Time in which a batch grows that has room."""
_GROWING = 1.05
"""Ratio by which it grows at least."""
_LOW = 0.75
"""Share of the limit below which a batch has room."""
_HIGH = 0.9
"""Share of the limit from which it needs no more prompts for each step."""

_STEPS = 8.0
"""Steps whose ended responses may be replaced by requests that wait in the engine."""

_RECENT = 0.05
"""Weight of the latest step in a mean: about twenty count."""


class _Endpoint:
    """The prompts of one endpoint, and what is known of its steps."""

    __slots__ = (
        *("allowed", "coming", "ends", "is_short", "missed", "others", "report"),
        *("running", "sent", "step_at", "steps", "tokens", "turnover", "watched_at"),
    )

    def __init__(self) -> None:
        self.sent: deque[tuple[float, float]] = deque()
        """When each prompt was sent, and its tokens to compute; the oldest first."""
        self.tokens = 0.0
        """Their sum."""
        self.others = 0.0
        """Tokens of further prompts that wait in the engine, from other senders or preempted."""
        self.step_at = -1.0
        """The end of the last step that is known."""
        self.ends = 0
        """Responses that ended with it."""
        self.steps = 0
        """Number of steps whose ends are known."""
        self.turnover = 0.0
        """Mean responses that end with a step."""
        self.coming = 0
        """Prompts for one step at the last reading."""
        self.allowed = _FIRST_TOKENS
        """Tokens of the prompts for one step."""
        self.is_short = False
        """True if a request waited because of `allowed`."""
        self.watched_at = 0.0
        self.running = 0.0
        """The batch at that time."""
        self.report: Report | None = None
        """The last reading."""
        self.missed = 1.0
        """Share of prompt tokens that are not in the cache."""

    def take(self) -> None:
        """Remove the oldest prompt, because the batch has taken it."""
        self.tokens -= self.sent.popleft()[1]
        if not self.sent:
            self.tokens = 0.0  # leaves no rounding error


class Prompts:
    """Prompts by endpoint address."""

    def __init__(self) -> None:
        self._endpoints: dict[str, _Endpoint] = {}

    def sent(self, address: str, tokens: float, now: float) -> None:
        """Record a prompt with this number of tokens to compute."""
        one = self._of(address)
        one.sent.append((now, tokens))
        one.tokens += tokens

    def step_ended(self, address: str, now: float) -> None:
        """Record the end of a response: the engine has taken the prompts that were sent before."""
        one = self._of(address)
        if now > one.step_at + _SAME_STEP_SECONDS:
            if one.ends:
                one.steps += 1
                one.turnover += max(_RECENT, 1 / one.steps) * (one.ends - one.turnover)
            one.step_at, one.ends = now, 0
        one.ends += 1
        one.others = 0.0
        while one.sent and one.sent[0][0] <= now - _SAME_STEP_SECONDS:
            one.take()

    def taken(self, address: str, until: float) -> None:
        """Record that the engine has taken the prompts that were sent until then."""
        one = self._of(address)
        while one.sent and one.sent[0][0] <= until:
            one.take()

    def read(
        self,
        address: str,
        report: Report,
        at: float,
        limit: float,
        mean: float,
        unseen: float = 0.0,
    ) -> None:
        """Take a reading. The endpoint's limit is known, and the mean tokens of a prompt.

        `unseen` requests came after the step whose end the reading describes.
        """
        one = self._of(address)
        # Clients that read slowly keep finished requests in flight, so old ones do not count.
        later = sum(sent_at > at - _LONGEST_STEP_SECONDS for sent_at, _ in one.sent)
        waiting = report.load.waiting + min(unseen, later)
        one.coming = _for_one_step(one, at)
        before = sum(sent_at <= at - _SAME_STEP_SECONDS for sent_at, _ in one.sent)
        for _ in range(int(before - waiting)):
            one.take()
        one.others = max(0.0, waiting - len(one.sent)) * mean
        _learn_misses(one, report)
        _adapt(one, report.running, at, limit)

    def has_room(self, address: str, tokens: float, *, is_shared: bool = True) -> bool:
        """Return True if an endpoint may get another prompt for its next step.

        If the model is not shared, the order of requests in the engine is the same as here.
        """
        one = self._of(address)
        after = one.tokens + one.others + tokens
        most = one.allowed if is_shared else max(one.allowed, _ALONE_TOKENS)
        if after <= max(tokens, most):
            return True
        one.is_short = is_shared
        return False

    def usual(self, address: str) -> float:
        """Return the number of requests that may wait in the engine although its batch has room.

        These are the prompts for the next step, and those that replace the responses of some steps.
        """
        one = self._of(address)
        return max(one.coming, _STEPS * one.turnover)

    def is_one_enough(self, address: str) -> bool:
        """Return True if the batch stays full with one usual prompt for each step."""
        return self._of(address).allowed <= _FIRST_TOKENS

    def missed(self, address: str) -> float:
        """Return the share of prompt tokens that the endpoint does not find in its cache."""
        return self._of(address).missed

    def keep_only(self, addresses: Set[str]) -> None:
        """Forget all other endpoints."""
        for address in self._endpoints.keys() - addresses:
            del self._endpoints[address]

    def _of(self, address: str) -> _Endpoint:
        one = self._endpoints.get(address)
        if one is None:
            one = self._endpoints[address] = _Endpoint()
        return one


def _for_one_step(one: _Endpoint, now: float) -> int:
    """Return how many of the prompts that were sent may be taken by one step."""
    tokens, number = 0.0, 0
    for sent_at, each in one.sent:
        if sent_at < now - _LONGEST_STEP_SECONDS:
            continue
        tokens += each
        if number and tokens > one.allowed:
            break
        number += 1
    return number


def _learn_misses(one: _Endpoint, report: Report) -> None:
    """Learn the share of tokens that are computed from the engine's counters."""
    last, one.report = one.report, report
    if last is None or last.prompt_tokens is None or report.prompt_tokens is None:
        return
    tokens = report.prompt_tokens - last.prompt_tokens
    now, before = report.computed_tokens, last.computed_tokens
    if tokens > 0 and now is not None and before is not None:
        share = min(max((now - before) / tokens, 0.0), 1.0)
        one.missed += _RECENT * (share - one.missed)


def _adapt(one: _Endpoint, running: float, at: float, limit: float) -> None:
    """Allow more prompts for each step while the batch neither fills nor grows."""
    if running >= _HIGH * limit:
        one.allowed = max(_FIRST_TOKENS, one.allowed * _LESS)
    if at >= one.watched_at + _FILLING_SECONDS:
        if one.is_short and running < _LOW * limit and running <= _GROWING * one.running:
            one.allowed = min(_MOST_TOKENS, one.allowed * _MORE)
        one.watched_at, one.running, one.is_short = at, running, False
