"""Prompts as sidecars see them: chains of blocks, without text.

The names of the segments determine the blocks that `extproc.core.request.blocks` would read from a
text: two prompts agree exactly as far as their segments do.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from typing import NamedTuple

import xxhash

from extproc.core.request.blocks import BLOCK_BYTES, MAX_BLOCKS, Prompt
from extproc.core.request.previous_turn import previous_turn
from extproc.lab.simulation.block_ids import BlockIds
from extproc.lab.workloads.text import CHARACTERS_PER_TOKEN
from extproc.lab.workloads.workload import Segment, Turn

_BLOCK_TOKENS = BLOCK_BYTES // CHARACTERS_PER_TOKEN


class Shown(NamedTuple):
    """The part of a body that Envoy shows to the sidecar."""

    whole: int
    """Longest body, in bytes, that Envoy shows whole."""

    head: int
    """Bytes that it shows of a longer body."""


SHIPPED = Shown(whole=8 * 2**20, head=65_536)
"""Limits of `envoy/envoy.yaml`."""

EVERYTHING = Shown(2**62, 2**62)
"""A gateway that shows whole bodies of any length."""


class Prompts:
    """Prompts of one workload."""

    def __init__(self, shown: Shown = SHIPPED) -> None:
        self._shown = shown
        self._ids = BlockIds(_BLOCK_TOKENS)
        self._hashes: dict[int, int] = {}

    def of(self, turn: Turn) -> Prompt:
        """Return the shown part of a turn's prompt."""
        size = CHARACTERS_PER_TOKEN * turn.prompt_tokens
        seen = size if size <= self._shown.whole else self._shown.head
        most = min(seen // BLOCK_BYTES, MAX_BLOCKS)
        ids = self._ids.of_prompt(turn)[:most]
        system = sum(one.tokens for one in takewhile(_is_system, turn.prompt)) // _BLOCK_TOKENS
        earlier, answered = _previous_segments(turn)
        return Prompt(
            [self._hash(one) for one in ids],
            size,
            min(system, len(ids)),
            previous_blocks=min(_tokens(turn.prompt[:earlier]) // _BLOCK_TOKENS, len(ids)),
            answered_bytes=CHARACTERS_PER_TOKEN * _tokens(turn.prompt[:answered]),
            turn=self._turn(turn, len(turn.prompt)) if seen == size else None,
            previous_turn=self._turn(turn, earlier) if earlier else None,
        )

    def _turn(self, turn: Turn, segments: int) -> int:
        """Return the hash of so many segments of a prompt."""
        row, last = self._ids.rows_of(turn)[segments - 1], turn.prompt[segments - 1]
        return xxhash.xxh64_intdigest(f"{row} {last.tokens}".encode())

    def _hash(self, block: int) -> int:
        found = self._hashes.get(block)
        if found is None:
            digest = xxhash.xxh64_intdigest(block.to_bytes(16, "little"))
            found = self._hashes[block] = digest
        return found


def _previous_segments(turn: Turn) -> tuple[int, int]:
    """Return the number of segments in the previous turn's prompt, and with its response."""
    system = sum(1 for _ in takewhile(_is_system, turn.prompt))
    found = previous_turn([{"role": one.role} for one in turn.prompt[system:]])
    return (system + found.prompt, system + found.answered) if found.prompt else (0, 0)


def _tokens(segments: Sequence[Segment]) -> int:
    return sum(one.tokens for one in segments)


def _is_system(segment: Segment) -> bool:
    return segment.role == "system"
