"""Bytes per prompt token of each model, learned from the token counts of responses and of engines.

A response's usage has the tokens of its own prompt, but few gateways show whole responses. So they
are also learned from the engines' counters (`extproc.core.fleet.counted_prompts`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from extproc.core.fleet.counted_prompts import CountedPrompts
from extproc.core.fleet.report import Report
from extproc.core.fleet.sent_request import SentRequest
from extproc.core.request.blocks import BYTES_PER_TOKEN

_LEAST_TOKENS = 2_000.0
"""Tokens of a model's known prompts below which the default counts for the rest. A chat template
adds tokens to each message, so a few short prompts have few bytes per token."""

_MOST_TOKENS = 1_000_000.0
"""Tokens of a model's latest prompts that count. Many short prompts count as much as a long one."""

_LEAST, _MOST = 0.5, 32.0
"""Bytes per token beyond these limits mean that the prompt is not text."""


class _Total(NamedTuple):
    """All known prompts of a model, the latest ones at least."""

    default: float
    """The bytes per token that the sidecar had for the model before."""

    bytes: float = 0.0
    tokens: float = 0.0


class TokenSizes:
    """Bytes per token by model."""

    def __init__(self) -> None:
        self._sizes: dict[str, float] = {}
        self._totals: dict[str, _Total] = {}
        self._endpoints: dict[str, CountedPrompts] = {}

    def of(self, model: str) -> float:
        """Return the bytes per token, or the default before the first prompt is known."""
        return self._sizes.get(model, BYTES_PER_TOKEN)

    def at(self, address: str) -> float:
        """Return the bytes per token at an endpoint, or the default before its first prompt."""
        one = self._endpoints.get(address)
        return BYTES_PER_TOKEN if one is None else self.of(one.model)

    @property
    def learned(self) -> Mapping[str, float]:
        """The bytes per token of the models whose prompts were counted."""
        return self._sizes

    def adopt(self, model: str, size: float) -> None:
        """Take over what another sidecar learned, unless this one learned a value itself."""
        if _LEAST <= size <= _MOST:
            self._sizes.setdefault(model, size)

    def record(self, model: str, size: float, tokens: float) -> None:
        """Record prompts of `size` bytes that had this number of tokens together."""
        if not (tokens > 0 and _LEAST <= size / tokens <= _MOST):
            return
        before = self._totals.get(model) or _Total(self.of(model))
        kept = min(1.0, max(0.0, _MOST_TOKENS - tokens) / max(before.tokens, 1.0))
        now = _Total(before.default, before.bytes * kept + size, before.tokens * kept + tokens)
        missing = max(0.0, _LEAST_TOKENS - now.tokens)
        self._totals[model] = now
        self._sizes[model] = (now.bytes + missing * now.default) / (now.tokens + missing)

    def sent(self, address: str, model: str, request: SentRequest, *, ours: bool) -> None:
        """Record a request to an endpoint; `ours` if this sidecar sends it.

        Then the size of a whole conversation is exact. A peer has counted its tokens with the bytes
        per token that it knows.
        """
        if (one := self._endpoints.get(address)) is not None:  # it has been read
            tokens = request.tokens if ours and request.turn is not None else None
            one.send(model, None if tokens is None else tokens * self.of(model))

    def read(self, address: str, before: Report | None, now: Report, *, is_idle: bool) -> None:
        """Take two successive readings of an endpoint (`CountedPrompts.read`)."""
        one = self._endpoints.get(address)
        if one is None:
            one = self._endpoints[address] = CountedPrompts()
        known = one.read(before, now, is_idle=is_idle)
        if known is not None:
            self.record(*known)

    def forget(self, address: str) -> None:
        """Forget an endpoint that left or restarted."""
        self._endpoints.pop(address, None)
