"""The paged prefix cache of one engine: the blocks of keys and values that it holds and evicts.

The cache has a fixed number of blocks. Each block is in one of three states:

    blank   holds nothing
    used    held by at least one request; never evicted
    idle    full, found by its id, but held by no request; evicted if a blank block is needed

A block that is not full yet has no id and belongs to one request (*anonymous*). Once it is full, it
is *named*, and other requests can find it. Ids are chained: the id of a block depends on all blocks
before it. A request finds the blocks of its prefix by walking its ids up to the first missing one.

The block that was released least recently is evicted first. As in vLLM, a request releases its
blocks from the tail to the head. The tail of a long conversation is therefore evicted before its
head, which more requests share, and the rest is still a prefix.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterable, Iterator, Sequence
from itertools import islice

BlockId = Hashable


class Holding:
    """The blocks that one request holds. Only the cache changes a holding."""

    __slots__ = ("anonymous", "named")

    def __init__(self, named: list[BlockId], anonymous: int) -> None:
        self.named = named
        self.anonymous = anonymous

    @property
    def blocks(self) -> int:
        """Number of blocks."""
        return len(self.named) + self.anonymous


class PrefixCache:
    """A cache in which each operation takes time linear in the blocks of its request."""

    def __init__(self, capacity: int) -> None:
        if capacity < 1:
            raise ValueError(f"a cache needs at least one block, not {capacity}")
        self.capacity = capacity
        """Blocks in total."""
        self._holders: dict[BlockId, int] = {}
        # A dict would scan all deleted keys to find its first key.
        self._idle: OrderedDict[BlockId, None] = OrderedDict()
        self._anonymous = 0

    @property
    def used(self) -> int:
        """Blocks held by requests; a shared block counts once."""
        return len(self._holders) + self._anonymous

    @property
    def free(self) -> int:
        """Blocks that can be allocated: blank ones, and idle ones by eviction."""
        return self.capacity - self.used

    @property
    def findable(self) -> int:
        """Blocks with an id, held or idle."""
        return len(self._holders) + len(self._idle)

    @property
    def usage(self) -> float:
        """Share of used blocks, 0 to 1. Idle blocks count as free, as in vLLM's gauge."""
        return self.used / self.capacity

    @property
    def blank(self) -> int:
        """Blocks that hold nothing."""
        return self.capacity - self.used - len(self._idle)

    def next_evicted(self, blocks: int, stride: int = 1) -> Iterator[BlockId]:
        """Return every `stride`-th of the next `blocks` blocks in the order of eviction."""
        return islice(self._idle, 0, blocks, stride)

    def holders(self, block: BlockId) -> int:
        """Return the number of requests that hold a named block."""
        return self._holders.get(block, 0)

    def __contains__(self, block: BlockId) -> bool:
        return block in self._holders or block in self._idle

    def match(self, ids: Iterable[BlockId]) -> int:
        """Return how many of the first ids the cache has, up to the first missing one."""
        hits = 0
        for block in ids:
            if block not in self._holders and block not in self._idle:
                break
            hits += 1
        return hits

    def acquire(self, ids: Sequence[BlockId], hits: int, fresh: int) -> Holding | None:
        """Hold the first `hits` of the ids, which must exist, and `fresh` anonymous blocks.

        Without room, return None and change nothing.
        """
        found = list(islice(ids, hits))
        revived = sum(block in self._idle for block in found)
        if revived + fresh > self.free:
            return None
        for block in found:
            self._hold(block)
        self._take(fresh)
        return Holding(found, fresh)

    def grow(self, holding: Holding, fresh: int) -> bool:
        """Add anonymous blocks to a holding. Without room, return False and change nothing."""
        if fresh > self.free:
            return False
        self._take(fresh)
        holding.anonymous += fresh
        return True

    def name(self, holding: Holding, block: BlockId) -> None:
        """Give a full anonymous block of a holding its id, so that other requests find it.

        If another request has computed the same block meanwhile, this one stays an anonymous
        copy. A request's blocks are never exchanged while it runs.
        """
        if block in self._holders or block in self._idle:
            return
        holding.anonymous -= 1
        holding.named.append(block)
        self._anonymous -= 1
        self._holders[block] = 1

    def release(self, holding: Holding) -> None:
        """Release all blocks of a holding; do nothing if it is empty."""
        for block in reversed(holding.named):
            holders = self._holders[block] - 1
            if holders:
                self._holders[block] = holders
            else:
                del self._holders[block]
                self._idle[block] = None
        self._anonymous -= holding.anonymous
        holding.named = []
        holding.anonymous = 0

    def clear(self) -> None:
        """Drop idle blocks; requests keep the blocks that they hold."""
        self._idle.clear()

    def _hold(self, block: BlockId) -> None:
        holders = self._holders.get(block, 0)
        if not holders:
            del self._idle[block]
        self._holders[block] = holders + 1

    def _take(self, fresh: int) -> None:
        self._anonymous += fresh
        while self.used + len(self._idle) > self.capacity:
            self._idle.popitem(last=False)
