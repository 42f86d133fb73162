"""A request in a simulated engine, how far it has got, and the step that it has a part in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from extproc.lab.kv_cache import BlockId, Holding


@dataclass(frozen=True, slots=True)
class SimRequest:
    """A request as the engine needs it: sizes and identities of blocks, no text."""

    request_id: int
    """Unique among the requests in the engine."""

    prompt_tokens: int
    """Tokens of the prompt, one at least."""

    output_tokens: int
    """Tokens it will generate, one at least; known beforehand, as with vLLM's `ignore_eos`."""

    blocks: Sequence[BlockId]
    """Chained ids of all full blocks of prompt and output together. The block in which the prompt
    ends is filled up by output. Who makes them makes them differ by adapter: its keys and values
    are not the base model's."""

    adapter: str = ""
    """The LoRA adapter it runs with; none: the base model."""


class TokenEvent(NamedTuple):
    """One token has been generated."""

    request_id: int
    first: bool
    finished: bool
    cached_tokens: int
    """Prompt tokens found in the cache when the request was admitted first."""


class Progress:
    """A request's progress. Waiting: no holding. Running: a holding."""

    __slots__ = (
        "cached_tokens",
        "computed",
        "filled",
        "generated",
        "held",
        "holding",
        "prefilling",
        "request",
    )

    def __init__(self, request: SimRequest) -> None:
        self.request = request
        self.generated = 0
        self.cached_tokens: int | None = None  # None: never admitted yet
        self.prefilling = True
        self.holding: Holding | None = None
        self.held = 0  # blocks
        self.filled = 0  # full blocks, of those held
        self.computed = 0  # tokens whose keys and values are in the cache

    @property
    def known(self) -> int:
        """Tokens of the prompt and those generated."""
        return self.request.prompt_tokens + self.generated


class Step:
    """What one step computes."""

    __slots__ = ("adapters", "admitted", "budget", "context", "parts", "prefill")

    def __init__(self, budget: int) -> None:
        self.parts: list[tuple[Progress, int]] = []
        self.adapters: dict[str, None] = {}  # in the order of the batch
        self.budget = budget
        self.context = 0
        self.prefill = 0
        self.admitted = 0

    def add(self, sequence: Progress, tokens: int) -> None:
        self.parts.append((sequence, tokens))
        self.budget -= tokens
        self.context += sequence.computed + tokens
        if sequence.prefilling:
            self.prefill += tokens
        if sequence.request.adapter:
            self.adapters[sequence.request.adapter] = None
