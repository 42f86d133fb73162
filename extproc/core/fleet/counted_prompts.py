"""The prompts that were sent to one endpoint, compared with those that its engine counted.

vLLM counts the prompts that have their first tokens, and their tokens. If no prompt is in progress
at two readings, and as many were sent in between as were counted, these are the same. So it is
known how many tokens they had. Requests of others, retries, and prompts that were refused or whose
clients left make the numbers differ, and then nothing is learned.
"""

from __future__ import annotations

from typing import NamedTuple

from extproc.core.fleet.report import Report


class Known(NamedTuple):
    """Prompts of one model whose bytes and tokens are known."""

    model: str
    bytes: float
    tokens: float


class _Period:
    """The time since a reading at which no prompt was in progress."""

    __slots__ = ("bytes", "counted", "model", "sent", "tokens")

    def __init__(self) -> None:
        self.model = ""
        self.bytes = 0.0
        self.sent = 0
        self.tokens = self.counted = 0.0


class CountedPrompts:
    """The prompts of one endpoint."""

    __slots__ = ("_period", "model")

    def __init__(self) -> None:
        self.model = ""
        """The model of the first prompt. All models of an engine have the same tokens."""
        self._period: _Period | None = None

    def send(self, model: str, size: float | None) -> None:
        """Take a prompt that is sent, with its size in bytes; None if that is unknown.

        Models may have different texts, so one period has prompts of only one.
        """
        self.model = self.model or model
        period = self._period
        if period is None:
            return
        if size is None or period.model not in ("", model):
            self._period = None
        else:
            period.model = model
            period.bytes += size
            period.sent += 1

    def read(self, before: Report | None, now: Report, *, is_idle: bool) -> Known | None:
        """Take two successive readings. `is_idle` if no prompt is in progress now.

        Return the prompts since none was in progress, if the engine counted no others.
        """
        prompts, tokens = _difference(before, now)
        period = self._period
        if period is None:
            self._period = _Period() if is_idle else None
            return None
        period.counted += prompts
        period.tokens += tokens
        if is_idle and period.counted == period.sent:
            self._period = _Period()
            return Known(period.model, period.bytes, period.tokens) if period.sent else None
        if is_idle or period.counted > period.sent:
            self._period = None  # perhaps a prompt that was sent is not in the metrics yet
        return None


def _difference(before: Report | None, now: Report) -> tuple[float, float]:
    """Return the prompts that an engine counted between two readings, and their tokens."""
    if before is None or before.first_tokens is None or before.responded_tokens is None:
        return 0.0, 0.0
    if now.first_tokens is None or now.responded_tokens is None:
        return 0.0, 0.0
    return now.first_tokens - before.first_tokens, now.responded_tokens - before.responded_tokens
