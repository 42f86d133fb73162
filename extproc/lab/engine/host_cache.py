"""The blocks of an engine in host memory, as vLLM's native KV offloading keeps them.

Each block is stored there when it is computed. So a block that the GPU has evicted can be loaded
again, which takes less time than to compute it. The least recently used blocks are dropped first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from extproc.lab.engine.kv_cache import BlockId


class HostCache:
    """Ids of blocks; without capacity, nothing is stored."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._blocks: OrderedDict[BlockId, None] = OrderedDict()

    def __contains__(self, block: BlockId) -> bool:
        return block in self._blocks

    def store(self, block: BlockId) -> None:
        """Store a block, and drop another one if there is no room."""
        if not self._capacity:
            return
        self._blocks[block] = None
        self._blocks.move_to_end(block)
        if len(self._blocks) > self._capacity:
            self._blocks.popitem(last=False)

    def match(self, ids: Iterable[BlockId]) -> int:
        """Return how many of the first ids are stored, up to the first missing one."""
        hits = 0
        for block in ids:
            if block not in self._blocks:
                break
            hits += 1
        return hits

    def touch(self, ids: Iterable[BlockId]) -> None:
        """Mark blocks as used, the first ones last, so that the ends of prompts are dropped first.

        Those that are not stored are ignored.
        """
        for block in reversed(list(ids)) if self._blocks else ():
            if block in self._blocks:
                self._blocks.move_to_end(block)

    def clear(self) -> None:
        """Drop all blocks."""
        self._blocks.clear()
