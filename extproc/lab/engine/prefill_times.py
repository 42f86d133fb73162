"""The times that an engine's prompts took, as vLLM counts them.

    vllm:request_prefill_time_seconds        from the first step of a request to its first token
    vllm:request_prefill_kv_computed_tokens  its prompt tokens that were not in the cache

Both are counted when a request finishes.
"""

from __future__ import annotations

from typing import NamedTuple

from extproc.lab.engine.step import Step, StepTokens


class _Prefill(NamedTuple):
    """A prompt that is computed, or was."""

    began: float
    prompt_tokens: int
    seconds: float = 0.0
    computed: int = 0


class PrefillTimes:
    """The prompts of running and of finished requests."""

    def __init__(self) -> None:
        self.prompts = 0
        """Requests that have finished."""
        self.seconds = 0.0
        """Sum of the times from their first step to their first token."""
        self.tokens = 0
        """Sum of their prompt tokens that were not in the cache."""
        self._now = 0.0  # the sum of all steps: an engine with requests is never idle
        self._running: dict[int, _Prefill] = {}

    def began(self, step: Step) -> None:
        """Record the step that is planned."""
        for sequence, _ in step.parts:
            request = sequence.request
            if request.request_id not in self._running:
                self._running[request.request_id] = _Prefill(self._now, request.prompt_tokens)

    def took(self, seconds: float, tokens: StepTokens) -> None:
        """Record that the step has ended."""
        self._now += seconds
        running = self._running
        for request_id, cached in tokens.first.items():
            one = running.get(request_id)
            if one is not None:
                computed = one.prompt_tokens - cached
                running[request_id] = one._replace(seconds=self._now - one.began, computed=computed)
        for request_id in tokens.finished:
            one = running.pop(request_id, None)
            if one is not None:
                self.prompts += 1
                self.seconds += one.seconds
                self.tokens += one.computed

    def aborted(self, request_id: int) -> None:
        """Forget a request."""
        self._running.pop(request_id, None)
