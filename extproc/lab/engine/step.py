"""One step of a simulated engine: its work, its duration and its tokens."""

from __future__ import annotations

from typing import NamedTuple

from extproc.lab.engine.decoding import Decoding
from extproc.lab.engine.profile import Profile
from extproc.lab.engine.request import Sequence


class StepTokens(NamedTuple):
    """The tokens that a step generated."""

    request_ids: list[int]
    """Requests that got one token each, in the order of the batch."""

    first: dict[int, int]
    """Requests that got their first token. The value is the number of prompt tokens that the
    cache had when the request was first admitted."""

    finished: list[int]
    """Requests that got their last token."""


class Step:
    """The work of one step, without the tokens of decoding requests."""

    __slots__ = (
        "adapters",
        "admitted",
        "budget",
        "context",
        "decodes",
        "loaded",
        "parts",
        "prefill",
    )

    def __init__(self, budget: int) -> None:
        self.parts: list[tuple[Sequence, int]] = []
        """Sequences whose prompt is computed, with the tokens of this step."""
        self.adapters: dict[str, None] = {}
        """Adapters of the batch, in its order."""
        self.budget = budget
        """Tokens that the step can still compute."""
        self.context = 0
        """Context tokens of `parts` after this step."""
        self.prefill = 0
        """Tokens of `parts` that this step computes."""
        self.loaded = 0
        """Tokens of admitted requests that are loaded from host memory."""
        self.decodes = True
        """True if the decoding requests get a token in this step."""
        self.admitted = 0
        """Requests that this step admits."""

    def add(self, sequence: Sequence, tokens: int) -> None:
        """Add the next tokens of a sequence."""
        self.parts.append((sequence, tokens))
        self.budget -= tokens
        self.context += sequence.computed + tokens
        self.prefill += tokens
        if sequence.request.adapter:
            self.adapters[sequence.request.adapter] = None

    def seconds(self, profile: Profile, decoding: Decoding) -> float:
        """Return the duration, without the loading of adapters; 0 for a step without requests."""
        if not self.parts and not decoding:
            return 0.0
        context = self.context + (decoding.context if self.decodes else 0)
        return (
            profile.step_base_seconds
            + profile.seconds_per_context_token * context
            + profile.admission_seconds * self.admitted
            + self.prefill / profile.prefill_tokens_per_second
            + self.loaded / profile.host_tokens_per_second
        )
