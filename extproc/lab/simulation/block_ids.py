"""The ids of a prompt's cache blocks, without its text.

A block is the same for two prompts if all up to its end is: the segments before it, and
its own as far as it goes. So each row of segments that some prompt begins with has a
number, and a block's id is the number of its row with the tokens of the last segment.
"""

from __future__ import annotations

from collections.abc import Iterable

from extproc.lab.workloads.workload import Segment, Turn

_OFFSET_BITS = 24
"""Tokens of one segment: up to 16 million."""


class BlockIds:
    """For one workload; ids of different ones must not meet."""

    def __init__(self, block_size: int) -> None:
        self._size = block_size
        self._rows: dict[tuple[int, int, str], int] = {}

    def of(self, turn: Turn) -> list[int]:
        """The ids of all full blocks of the prompt and its answer."""
        return self._of(turn, (*turn.prompt, turn.output))

    def of_prompt(self, turn: Turn) -> list[int]:
        """The ids of all full blocks of the prompt alone."""
        return self._of(turn, turn.prompt)

    def _of(self, turn: Turn, segments: Iterable[Segment]) -> list[int]:
        ids: list[int] = []
        # Keys and values of an adapter are its own, so its name comes before all.
        row = self._row(0, 0, turn.adapter)
        before = 0  # tokens of the last segment
        position = 0  # tokens of all
        for segment in segments:
            row = self._row(row, before, segment.name)
            ids += self._blocks(row, position, segment)
            before = segment.tokens
            position += before
        return ids

    def _blocks(self, row: int, position: int, segment: Segment) -> range:
        """Those that end in this segment."""
        first = self._size - position % self._size
        base = row << _OFFSET_BITS
        return range(base + first, base + segment.tokens + 1, self._size)

    def _row(self, parent: int, tokens: int, name: str) -> int:
        return self._rows.setdefault((parent, tokens, name), len(self._rows) + 1)
