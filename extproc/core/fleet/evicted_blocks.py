"""The blocks that an endpoint has probably evicted last.

If requests find them in the engine's cache all the same, the cache is larger than the index
believes (`extproc.core.fleet.cache_sizes`).
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Iterator, Sequence

from extproc.core.request.blocks import agreement

_NONE = (0.0, array("Q"))


class EvictedBlocks:
    """Pieces of prompts by their first block, those that were evicted last at the end.

    The end of a prompt is evicted before its beginning, in several pieces.
    """

    __slots__ = ("_pieces", "size")

    def __init__(self) -> None:
        self._pieces: OrderedDict[int, tuple[float, array[int]]] = OrderedDict()
        self.size = 0
        """Blocks, with one more for each piece: it takes about that much memory."""

    def add(self, blocks: Sequence[int], used_at: float, most: int) -> None:
        """Add blocks that were evicted together, and drop the first ones beyond `most`."""
        self._pop(blocks[0])
        self._pieces[blocks[0]] = (used_at, array("Q", blocks))
        self.size += len(blocks) + 1
        while self.size > most:
            self._pop(next(iter(self._pieces)))

    def take(self, blocks: Sequence[int]) -> int:
        """Remove the beginning of these blocks, which are cached again, and return its length."""
        found = 0
        while found < len(blocks):
            used_at, piece = self._pop(blocks[found])
            if not piece:
                break
            agreed = agreement(piece, blocks, found)
            found += agreed
            if agreed < len(piece):
                self.add(piece[agreed:], used_at, self.size + len(piece))
                break
        return found

    def latest_first(self) -> Iterator[tuple[float, Sequence[int]]]:
        """Yield the pieces with the times of their last uses; beginnings come before ends."""
        return reversed(self._pieces.values())

    def _pop(self, first: int) -> tuple[float, array[int]]:
        used_at, piece = self._pieces.pop(first, _NONE)
        if piece:
            self.size -= len(piece) + 1
        return used_at, piece
