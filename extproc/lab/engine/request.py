"""A request in a simulated engine, how far it has got, and what comes out of a step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from extproc.lab.engine.kv_cache import BlockId, Holding


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


class StepTokens(NamedTuple):
    """What came out of a step."""

    request_ids: list[int]
    """Each has one token more; in the order of the batch."""

    first: dict[int, int]
    """Those of them that had their first, with the prompt tokens that were found in the cache
    when they were admitted first."""

    finished: list[int]
    """Those that had their last."""


class Progress:
    """A request's progress. Waiting: no holding. Running: a holding.

    One whose known tokens are all computed but the last *decodes*: it advances by a token a step
    until it is over or preempted. What follows from the number of steps is not kept here.
    """

    __slots__ = (
        "cached_tokens",
        "computed",
        "ends",
        "filled",
        "generated",
        "held",
        "holding",
        "order",
        "request",
    )

    def __init__(self, request: SimRequest) -> None:
        self.request = request
        self.generated = 0  # before it decodes
        self.cached_tokens: int | None = None  # None: never admitted yet
        self.holding: Holding | None = None
        self.order = 0  # of admission
        # While its known tokens are computed:
        self.held = 0  # blocks
        self.filled = 0  # full blocks, of those held
        self.computed = 0  # tokens whose keys and values are in the cache
        # While it decodes:
        self.ends = 0  # the step that gives its last token

    @property
    def known(self) -> int:
        """Tokens of the prompt and those generated, where it does not decode."""
        return self.request.prompt_tokens + self.generated
