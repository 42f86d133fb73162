"""The tokens that engines compute per prompt, by their own counters.

A sidecar that shares no state does not know the prompts that others have sent, so it expects less
in the caches than there is. The counters include the prompts of all sidecars.

Before PR 48860 (July 2026), vLLM counted the tokens of a waiting request again in each step. Then
the mean is too high. So `Signals` limits it to what the sidecar expects of its own prompts.
"""

from __future__ import annotations

from extproc.core.fleet.report import Report

_KEPT = 0.998
"""Weight that earlier prompts keep with each new one: about five hundred count."""


class ComputedPrompts:
    """The recent prompts of all engines."""

    def __init__(self) -> None:
        self._tokens = 0.0
        self._prompts = 0.0

    @property
    def mean(self) -> float | None:
        """Mean tokens that were computed for a prompt; None if unknown."""
        return self._tokens / self._prompts if self._prompts else None

    def read(self, before: Report | None, now: Report) -> None:
        """Take two successive readings of one engine."""
        if before is None or before.computed_tokens is None or before.first_tokens is None:
            return
        if now.computed_tokens is None or now.first_tokens is None:
            return
        tokens = now.computed_tokens - before.computed_tokens
        prompts = now.first_tokens - before.first_tokens
        if tokens < 0 or prompts < 0:
            return  # the engine has restarted
        kept = _KEPT**prompts
        self._tokens = self._tokens * kept + tokens
        self._prompts = self._prompts * kept + prompts
