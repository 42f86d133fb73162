"""A request in a simulated engine, and its progress."""

from __future__ import annotations

from collections import abc
from dataclasses import dataclass

from extproc.lab.engine.kv_cache import BlockId, Holding


@dataclass(frozen=True, slots=True)
class SimRequest:
    """A request as the engine needs it: sizes and block ids, no text."""

    request_id: int
    """An id that no other request in the engine has."""

    prompt_tokens: int
    """Tokens of the prompt, at least one."""

    output_tokens: int
    """Tokens to generate, at least one. The number is fixed, as with vLLM's `ignore_eos`."""

    blocks: abc.Sequence[BlockId]
    """Chained ids of all full blocks of the prompt and the output together. Output fills the
    block in which the prompt ends. Ids must differ between adapters, because an adapter's keys
    and values differ from the base model's."""

    adapter: str = ""
    """The request's LoRA adapter; empty for the base model."""


class Sequence:
    """The progress of one request, which runs as long as it has a holding.

    A sequence *decodes* if only the last of its known tokens is not computed yet. It then
    advances by one token per step, until it finishes or is preempted. `Decoding` derives the
    progress of such a sequence from the number of steps.
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
        self.generated = 0
        """Generated tokens; not updated while the sequence decodes."""
        self.cached_tokens: int | None = None
        """Prompt tokens that the cache had at the first admission; None before it."""
        self.holding: Holding | None = None
        self.order = 0
        """Position in the order of admission."""

        # These describe a sequence that does not decode yet.
        self.held = 0
        """Blocks held."""
        self.filled = 0
        """Full blocks among those held."""
        self.computed = 0
        """Tokens whose keys and values are in the cache."""

        # This describes a sequence that decodes.
        self.ends = 0
        """The step that generates the last token."""

    @property
    def known(self) -> int:
        """Prompt tokens and generated tokens; only valid if the sequence does not decode."""
        return self.request.prompt_tokens + self.generated
