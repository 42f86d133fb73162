"""Ids of a prompt's cache blocks, without its text.

Two prompts share a block if they agree up to its end: in the segments before it, and in its own
segment up to there. So each sequence of segments that starts some prompt has a number. A block's id
combines that number with the tokens of the last segment.
"""

from __future__ import annotations

from collections.abc import Iterable

from extproc.lab.workloads.workload import Segment, Turn

_OFFSET_BITS = 24
"""Bits for the tokens of one segment: up to 16 million."""


class BlockIds:
    """Ids of one workload. Ids of different workloads must not be mixed."""

    def __init__(self, block_size: int) -> None:
        self._size = block_size
        self._rows: dict[tuple[int, int, str], int] = {}

    def of(self, turn: Turn) -> list[int]:
        """Return the ids of all full blocks of the prompt and its response."""
        return self._of(turn, (*turn.prompt, turn.output))

    def of_prompt(self, turn: Turn) -> list[int]:
        """Return the ids of all full blocks of the prompt alone."""
        return self._of(turn, turn.prompt)

    def rows_of(self, turn: Turn) -> list[int]:
        """Return the number of each sequence of segments that starts the prompt."""
        rows = [self._row(0, 0, turn.adapter)]
        before = 0
        for segment in turn.prompt:
            rows.append(self._row(rows[-1], before, segment.name))
            before = segment.tokens
        return rows[1:]

    @staticmethod
    def row(block: int) -> int:
        """Return the number of the sequence of segments in which a block ends."""
        return block >> _OFFSET_BITS

    def _of(self, turn: Turn, segments: Iterable[Segment]) -> list[int]:
        ids: list[int] = []
        # An adapter has its own keys and values, so its name comes first.
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
        """Return the blocks that end in this segment."""
        first = self._size - position % self._size
        base = row << _OFFSET_BITS
        return range(base + first, base + segment.tokens + 1, self._size)

    def _row(self, parent: int, tokens: int, name: str) -> int:
        return self._rows.setdefault((parent, tokens, name), len(self._rows) + 1)
