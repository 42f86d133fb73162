"""A paged prefix cache: which blocks of keys and values one engine holds, and which it evicts.

Theory of operation. The cache has a fixed number of blocks. Each is in one of three states:

    blank   nothing worth keeping in it
    used    held by at least one request; never evicted
    idle    full, findable by its id, held by nobody; evicted when a blank block is wanted

A block that is not yet full has no id and belongs to one request (*anonymous*). When it
fills up it is *named*: from then on other requests find it. Ids are chained (the id of
a block depends on all blocks before it), so a request finds the blocks of its prefix by
walking its ids until the first one that is not there.

Eviction is least recently released first, and a request releases its blocks from the
tail to the head, as vLLM does: the tail of a long conversation goes before its head, which
more requests share, and what is left is still a prefix.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterable, Sequence
from itertools import islice

BlockId = Hashable


class Holding:
    """The blocks that one request holds; only the cache changes it."""

    __slots__ = ("anonymous", "named")

    def __init__(self, named: list[BlockId], anonymous: int) -> None:
        self.named = named
        self.anonymous = anonymous

    @property
    def blocks(self) -> int:
        """How many blocks this is."""
        return len(self.named) + self.anonymous


class PrefixCache:
    """Every operation is linear in the blocks of its request, whatever the size of the cache."""

    def __init__(self, capacity: int) -> None:
        if capacity < 1:
            raise ValueError(f"a cache needs a block at least, not {capacity}")
        self.capacity = capacity
        """Blocks in all."""
        self._holders: dict[BlockId, int] = {}
        # Not a dict: its first key is found by a scan over all that were deleted before it.
        self._idle: OrderedDict[BlockId, None] = OrderedDict()
        self._anonymous = 0

    @property
    def used(self) -> int:
        """Blocks held by requests; one that several share counts once."""
        return len(self._holders) + self._anonymous

    @property
    def free(self) -> int:
        """Blocks that can be had: blank ones, and idle ones by eviction."""
        return self.capacity - self.used

    @property
    def findable(self) -> int:
        """Blocks with an id, held or idle."""
        return len(self._holders) + len(self._idle)

    @property
    def usage(self) -> float:
        """The used share, 0 to 1. Idle blocks count as free, as in vLLM's gauge."""
        return self.used / self.capacity

    def match(self, ids: Iterable[BlockId]) -> int:
        """How many of the first ids are here without a gap."""
        hits = 0
        for block in ids:
            if block not in self._holders and block not in self._idle:
                break
            hits += 1
        return hits

    def acquire(self, ids: Sequence[BlockId], hits: int, fresh: int) -> Holding | None:
        """Holds the first `hits` of the ids, which must be here, and `fresh` anonymous blocks.

        None, and nothing has changed, where there is no room.
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
        """Adds anonymous blocks to a holding; False, and nothing has changed, without room."""
        if fresh > self.free:
            return False
        self._take(fresh)
        holding.anonymous += fresh
        return True

    def name(self, holding: Holding, block: BlockId) -> None:
        """One of the holding's anonymous blocks is full and can be found from now on.

        Where another request has computed the same block meanwhile, this one stays an
        anonymous copy: a request's blocks are never exchanged while it runs.
        """
        if block in self._holders or block in self._idle:
            return
        holding.anonymous -= 1
        holding.named.append(block)
        self._anonymous -= 1
        self._holders[block] = 1

    def release(self, holding: Holding) -> None:
        """Gives all blocks back; again, it does nothing."""
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
        """Forgets idle blocks; those that requests hold stay."""
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
