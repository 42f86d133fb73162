"""The parts of a prompt that are in the endpoints' caches, for PrefixCache."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from extproc.core.fleet.signals import Signals
from extproc.core.request.blocks import BLOCK_BYTES, Prompt
from extproc.core.strategies.base import Query

_NO_PROMPT = Prompt((), 0)


class CachedPrompt(NamedTuple):
    """A request's prompt, and its blocks in the caches of endpoints, which positions stand for."""

    prompt: Prompt
    tokens: float
    per_block: float
    """Tokens of a block."""

    depths: dict[int, int]
    """Blocks in each endpoint's cache; the highest numbers come last if there is one prompt. If
    there are several, their blocks are added up."""

    deepest: int
    """The highest of these numbers; 0 if there are none."""

    previous: int | None
    """The endpoint that had the previous turn, and probably has its response; None if unknown."""

    @classmethod
    def of(cls, query: Query, positions: Mapping[str, int], signals: Signals) -> CachedPrompt:
        """Look up a request's prompt in the caches of the endpoints with these addresses."""
        prompt = query.prompt or _NO_PROMPT
        depths = dict[int, int]()
        for blocks in (prompt.blocks, *prompt.other_chains):
            for address, depth in signals.prefixes.matches(blocks).items():
                position = positions.get(address)
                if position is not None:
                    depths[position] = depths.get(position, 0) + depth
        tokens = prompt.bytes / query.bytes_per_token
        per_block = BLOCK_BYTES / query.bytes_per_token
        previous = None
        if prompt.previous_turn is not None:
            had_it = signals.turns.endpoint_of(prompt.previous_turn)
            previous = positions.get(had_it) if had_it else None
        return cls(prompt, tokens, per_block, depths, max(depths.values(), default=0), previous)

    def cached(self) -> dict[int, float]:
        """Return the tokens in each endpoint's cache.

        The endpoint with the previous turn probably has the response to it, too. Often blocks show
        already where a session is: one endpoint has more of them than any other. So the response
        counts only if it adds more tokens than these. If all responses count, simulated mean TTFT
        is 1 % longer on the conversations of docs/prefix-caches.md: sessions stay longer on busy
        endpoints.
        """
        found = {position: self.per_block * depth for position, depth in self.depths.items()}
        if self.previous is not None:
            answered = self.per_block * self.prompt.answered_bytes / BLOCK_BYTES
            answered = min(answered, self.tokens)
            if answered - found.get(self.previous, 0.0) > self.tied_tokens:
                found[self.previous] = answered
        return found

    @property
    def prefix(self) -> int | None:
        """The hash of the deepest block; None if there is none, or if there are several prompts."""
        is_one = self.deepest and not self.prompt.other_chains
        return self.prompt.blocks[self.deepest - 1] if is_one else None

    @property
    def tied_tokens(self) -> float:
        """The tokens that one endpoint has more than any other; 0 if there are several prompts."""
        if self.prefix is None:
            return 0.0
        deepest_first = reversed(self.depths.values())
        more = next(deepest_first) - next(deepest_first, 0)
        return self.per_block * more

    @property
    def repeated_blocks(self) -> int:
        """The blocks that have probably been sent before, by this sidecar or another."""
        return max(self.deepest, self.prompt.previous_blocks)

    @property
    def has_history(self) -> bool:
        """True if an endpoint has more than the system prompt."""
        return self.deepest > self.prompt.system_blocks

    @property
    def compared_tokens(self) -> float:
        """Tokens of the prompt that count: those of the compared part if it has a history."""
        if self.has_history:
            return min(self.tokens, self.per_block * self.prompt.most_compared_blocks)
        return self.tokens
