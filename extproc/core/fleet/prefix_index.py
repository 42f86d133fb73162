"""The blocks that each endpoint's prefix cache probably holds, from the prompts sent there.

An endpoint has the blocks of a prompt after it computed it, and evicts the least recently used
blocks when its cache is full. So the index keeps as many sent blocks as fit. vLLM reports the size,
and the sidecar learns what it keeps outside the GPU (`extproc.core.fleet.cache_sizes`).
It misses the prompts of sidecars that share no state, and the blocks that an engine evicts for its
running requests. A wrong prediction costs time, not correctness; metrics compare predictions with
the `usage` of responses.

Blocks do not expire by age, as in vLLM. In the laboratory a time to live of 10 seconds multiplied
the mean TTFT by 1.2 (saas), 1.3 (mooncake) and 1.6 (codegen), and one of 30 seconds by up to 1.13.
With two minutes or ten there was next to no difference.

The holders of each block are one integer with a bit per endpoint. So a few lookups find the longest
cached beginning of a prompt on all endpoints together.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import count

from extproc.core.fleet.cache_sizes import Uses
from extproc.core.fleet.held_blocks import DEFAULT_BLOCKS, HeldBlocks
from extproc.core.request.blocks import BLOCK_BYTES, BLOCK_TOKENS, BYTES_PER_TOKEN

MOST_BLOCKS = 1_255_000
"""The most blocks of all endpoints together, in equal shares, with the overhead of runs. A million
fit in runs of 16 and more, fewer in shorter runs. 200 endpoints take less than 300 MB."""

_MOST_SETS = 512
"""Sets of holders that are kept as addresses, because many prompts share a popular prefix."""


class PrefixIndex:
    """Blocks by endpoint address."""

    def __init__(self, clock: Callable[[], float], most_blocks: int = MOST_BLOCKS) -> None:
        self._clock = clock
        self._most = most_blocks
        self._holders: dict[int, int] = {}
        self._held: dict[str, HeldBlocks] = {}
        self._addresses: dict[int, str] = {}
        self._sets: dict[int, list[str]] = {}
        # No number occurs twice, also after a restart of an engine, because sessions outlive it.
        self._numbers = count(1)

    def __len__(self) -> int:
        """Return the blocks of all endpoints together."""
        return sum(held.size for held in self._held.values())

    def size(self, address: str) -> int:
        """Return the blocks of one endpoint."""
        held = self._held.get(address)
        return held.size if held else 0

    def room(self, address: str) -> float:
        """Return the tokens of the blocks that fit into an endpoint's cache."""
        held = self._held.get(address)
        return held.tokens if held else DEFAULT_BLOCKS * BLOCK_TOKENS

    def age(self, address: str) -> float | None:
        """Return the seconds since an endpoint's next blocks to evict were used.

        None means that there is room, or that the index has less room than the endpoint.
        """
        held = self._held.get(address)
        oldest = held.oldest() if held else None
        return None if oldest is None else self._clock() - oldest

    def sent(self, address: str, blocks: Sequence[int]) -> int:
        """Record that a prompt was sent to an endpoint, and evict other blocks if necessary.

        Return the number of the run in which the prompt ends. A prompt that continues it ends in
        the same run.
        """
        held = self._held.get(address) or self._new(address)
        new, run = held.use(blocks, self._clock())
        held.uses.count(len(blocks), len(new), held.evicted.take(new))
        if new:
            self._gained(new, held.bit)
        self._evict(held)  # even if nothing is new: a run that was split takes more
        return run

    def run_ending(self, address: str, blocks: Sequence[int], depth: int) -> int:
        """Return the run of an endpoint that ends after `depth` blocks of a prompt; 0 if none does.

        If a prompt continues another one, the latter has ended in this run, see `sent`.
        """
        held = self._held.get(address)
        return held.run_ending(blocks, depth) if held else 0

    def matches(self, blocks: Sequence[int]) -> dict[str, int]:
        """Return, by endpoint, the number of leading blocks that it holds, without zeros.

        Those that hold the most come last.
        """
        holders, found = self._holders, dict[str, int]()
        depth, end = 0, len(blocks)
        last = holders.get(blocks[-1], 0) if blocks else 0
        while depth < end and (mask := holders.get(blocks[depth], 0)):
            # Each holder of a block holds all blocks before it: search where holders drop out.
            low, high = depth, end
            if mask == last:  # none drops out, as in a conversation that continues
                low = high
            while high - low > 1:
                middle = (low + high) // 2
                if holders.get(blocks[middle], 0) == mask:
                    low = middle
                else:
                    high = middle
            depth = high
            dropped = mask ^ holders.get(blocks[depth], 0) if depth < end else mask
            for address in self._in(dropped):
                found[address] = depth
        return found

    def uses(self, address: str) -> Uses | None:
        """Return the uses of an endpoint's blocks since it was added; None if there is room.

        A full index has all blocks that a cache of the same size would have.
        """
        held = self._held.get(address)
        return held.uses if held and held.is_full else None

    def resize(self, address: str, tokens: float, bytes_per_token: float = BYTES_PER_TOKEN) -> None:
        """Set the size of an endpoint's cache. A larger one still has what was evicted last."""
        held = self._held.get(address) or self._new(address)
        before = held.capacity
        held.set_room(tokens, BLOCK_BYTES / bytes_per_token)
        if held.capacity > before:
            for blocks in held.restore_evicted():
                self._gained(blocks, held.bit)
        self._evict(held)

    def runs(self, address: str) -> list[tuple[float, Sequence[int]]]:
        """Return the runs of an endpoint, the least recently used first, with seconds since use."""
        held, now = self._held.get(address), self._clock()
        return [(now - at, run) for at, run in held.used_runs()] if held else []

    def restore(self, address: str, runs: Iterable[tuple[float, Sequence[int]]]) -> None:
        """Take over runs that another sidecar knows, unless the endpoint has blocks already."""
        held = self._held.get(address) or self._new(address)
        if held.size:
            return
        now = self._clock()
        for age, run in runs:
            if held.restore(run, now - age):
                self._gained(run, held.bit)
        self._evict(held)

    def forget(self, address: str) -> None:
        """Forget the blocks of an endpoint that left or restarted."""
        held = self._held.pop(address, None)
        if held is not None:
            del self._addresses[held.bit]
            for run in held.all():
                self._lost(run, held.bit)

    def _new(self, address: str) -> HeldBlocks:
        bit = 1
        while bit in self._addresses:
            bit <<= 1
        self._addresses[bit] = address
        self._sets.clear()
        held = self._held[address] = HeldBlocks(bit, self._numbers)
        for other in self._held.values():
            self._evict(other)  # its share is smaller now
        return held

    def _in(self, mask: int) -> list[str]:
        """Return the endpoints whose bits are set."""
        found = self._sets.get(mask)
        if found is None:
            if len(self._sets) >= _MOST_SETS:
                self._sets.clear()
            found = self._sets[mask] = [self._addresses[bit] for bit in _bits(mask)]
        return found

    def _evict(self, held: HeldBlocks) -> None:
        for blocks in held.excess(self._most // len(self._held)):
            self._lost(blocks, held.bit)

    def _gained(self, blocks: Sequence[int], bit: int) -> None:
        holders = self._holders
        # Each holder of a block holds all blocks before it, so blocks with holders come first.
        known = bisect_left(blocks, True, key=lambda block: block not in holders)
        for block in blocks[:known]:
            # Another sidecar may have reported a chain in which an unknown block comes first.
            holders[block] = holders.get(block, 0) | bit
        for block in blocks[known:]:
            holders[block] = bit

    def _lost(self, blocks: Sequence[int], bit: int) -> None:
        holders = self._holders
        mask, left = bit, 0  # neighbors mostly have equal masks: compute once
        for block in blocks:
            # Another sidecar may have reported chains that contradict each other.
            if (found := holders.get(block, bit)) != mask:
                mask, left = found, self._common(found & ~bit)
            if left:
                holders[block] = left
            else:
                holders.pop(block, None)

    def _common(self, mask: int) -> int:
        """Return the shared integer object for blocks that only one endpoint holds."""
        address = self._addresses.get(mask)
        return mask if address is None else self._held[address].bit


def _bits(mask: int) -> Iterator[int]:
    """Yield the bits that are set."""
    while mask:
        bit = mask & -mask
        yield bit
        mask ^= bit
