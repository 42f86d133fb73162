"""The requests that a workload will still send, as far as they share blocks."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from extproc.lab.simulation.block_ids import BlockIds
from extproc.lab.workloads.workload import Turn, Workload


class Shared(NamedTuple):
    """The beginning of a prompt that many later requests share."""

    tokens: int
    share: float
    """Share of the later requests."""


class Futures:
    """Counts of later requests by the sequences of segments that start their prompts."""

    def __init__(self, workload: Workload, ids: BlockIds) -> None:
        self._ids = ids
        turns = list(workload.turns)
        self._left = len(turns)
        self._uses = Counter(row for turn in turns for row in ids.rows_of(turn))

    def sent(self, turn: Turn) -> None:
        """Record that a request is no longer a later one."""
        self._left -= 1
        self._uses.subtract(self._ids.rows_of(turn))

    def needed(self, block: int) -> bool:
        """Return True if a later prompt probably begins with this block."""
        return self._uses[self._ids.row(block)] > 0

    def shared(self, turn: Turn, requests: int) -> Shared:
        """Return the longest beginning that at least this many later requests have."""
        tokens, uses = 0, 0
        for row, segment in zip(self._ids.rows_of(turn), turn.prompt, strict=True):
            if self._uses[row] < requests:
                break
            tokens, uses = tokens + segment.tokens, self._uses[row]
        return Shared(tokens, min(1.0, uses / max(1, self._left)))
