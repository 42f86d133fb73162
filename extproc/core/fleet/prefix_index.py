"""What each endpoint's prefix cache probably holds, judged by what was sent there.

An endpoint has the blocks of a prompt once it has computed it, and loses the least recently
used ones when its cache is full; vLLM says how large that is. So whoever remembers the blocks
that it sent, as many as fit, knows most of what is there. What other sidecars sent is not seen, nor
what an engine drops for its running requests: predictions are counted against what answers
say, and it costs time, not correctness, where they are wrong.

Nothing is forgotten for its age alone, as in vLLM. In the laboratory a time to live of 10 seconds
made the mean time to first token 1.2 (saas), 1.3 (mooncake) and 1.6 times (codegen) as long, one
of 30 seconds up to 1.13 times, and one of two minutes or ten changed next to nothing.

For each block one whole number says who has it, a bit for each endpoint: who has the
beginning of a prompt, and how far, takes a few looks for all endpoints together.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from extproc.core.request.blocks import BLOCK_BYTES, BYTES_PER_TOKEN

MOST_BLOCKS = 1_255_000
"""Of all endpoints together, runs and all; each may have its share of them. A million fit in runs
of 16 and more, fewer in shorter ones, and 200 endpoints take less than 300 MB in any case."""

RUN_BLOCKS = 4
"""What a run takes beside its blocks, in blocks: about three as measured, and one for what dicts
keep from times of more runs."""

DEFAULT_BLOCKS = 1024
"""Of an endpoint that does not say how large its cache is: 65,000 tokens, an L4's with 8B."""


class _Held:
    """What one endpoint has: runs of blocks, each of them used as a whole, if at all.

    A run is found by its first block, and what branches off from it, anywhere, was used before it
    was itself: so from the run that was not used for longest none does, and its end may go.
    """

    __slots__ = ("_made", "_numbers", "_runs", "bit", "capacity", "size")

    def __init__(self, bit: int) -> None:
        self.bit = bit
        self._runs: OrderedDict[int, array[int]] = OrderedDict()  # the last used at the end
        self._numbers: dict[int, int] = {}  # of runs, by their first blocks
        self._made = 0
        self.size = 0
        self.capacity = DEFAULT_BLOCKS

    def use(self, blocks: Sequence[int]) -> Sequence[int]:
        """A prompt is used now; those of its blocks that were not there, and now are."""
        path: list[int] = []
        depth = 0
        while depth < len(blocks) and (number := self._numbers.get(blocks[depth])) is not None:
            run = self._runs[number]
            used = _agreement(run, blocks, depth)
            path.append(number if used == len(run) else self._split(number, used))
            depth += used
        new = blocks[depth:]
        if new and path:  # a conversation is one run, however it grew
            self._runs[path[-1]].extend(array("Q", new))
        elif new:
            self._add(new[0], array("Q", new))
        self.size += len(new)
        for number in reversed(path):
            self._runs.move_to_end(number)
        return new

    def excess(self, share: int) -> Iterator[Sequence[int]]:
        """Takes out what is more than fits, the least recently used first, and ends first."""
        while (more := self._more(share)) > 0:
            number, run = next(iter(self._runs.items()))
            kept = max(0, len(run) - more)
            self.size -= len(run) - kept
            if kept:
                self._runs[number] = run[:kept]  # an array that is cut may keep all its memory
            else:
                del self._runs[number], self._numbers[run[0]]
            yield run[kept:]

    def all(self) -> Iterable[Sequence[int]]:
        """Its blocks, run by run."""
        return self._runs.values()

    def _more(self, share: int) -> int:
        """How many blocks it has that its engine has no room for, or that take too much here."""
        return max(self.size - self.capacity, self.size + RUN_BLOCKS * len(self._runs) - share)

    def _add(self, first: int, run: array[int]) -> int:
        # The first block is an object that others have, too: one out of the array would be new.
        self._made += 1
        self._runs[self._made] = run
        self._numbers[first] = self._made
        return self._made

    def _split(self, number: int, used: int) -> int:
        """The beginning of a run becomes one of its own; what was not used stays as old as it is.

        Else what one prompt had behind a beginning that many share would never be forgotten.
        """
        run = self._runs[number]
        self._runs[number] = run[used:]
        self._numbers[run[used]] = number
        return self._add(run[0], run[:used])


class PrefixIndex:
    """Blocks by endpoint address."""

    def __init__(self, most_blocks: int = MOST_BLOCKS) -> None:
        self._most = most_blocks
        self._holders: dict[int, int] = {}
        self._held: dict[str, _Held] = {}
        self._addresses: dict[int, str] = {}

    def __len__(self) -> int:
        """Blocks of all endpoints together."""
        return sum(held.size for held in self._held.values())

    def size(self, address: str) -> int:
        """Blocks of one endpoint."""
        held = self._held.get(address)
        return held.size if held else 0

    def sent(self, address: str, blocks: Sequence[int]) -> None:
        """A prompt goes there: its blocks will be in the cache, and others may be driven out."""
        held = self._held.get(address) or self._new(address)
        if new := held.use(blocks):
            self._gained(new, held.bit)
        self._evict(held)  # even if nothing is new: a run that was split takes more

    def matches(self, blocks: Sequence[int]) -> Mapping[str, int]:
        """How many of these blocks, from the first on, each endpoint has; it is left out with 0."""
        holders, found = self._holders, dict[str, int]()
        depth, end = 0, len(blocks)
        last = holders.get(blocks[-1], 0) if blocks else 0
        while depth < end and (mask := holders.get(blocks[depth], 0)):
            # Whoever has a block has those before it, so it is enough to find where one drops out.
            low, high = depth, end
            if mask == last:  # nobody does, as with a conversation that goes on where it was
                low = high
            while high - low > 1:
                middle = (low + high) // 2
                if holders.get(blocks[middle], 0) == mask:
                    low = middle
                else:
                    high = middle
            depth = high
            gone = mask ^ holders.get(blocks[depth], 0) if depth < end else mask
            while gone:
                bit = gone & -gone
                found[self._addresses[bit]] = depth
                gone ^= bit
        return found

    def resize(self, address: str, tokens: int) -> None:
        """So many fit into its cache."""
        held = self._held.get(address) or self._new(address)
        held.capacity = max(1, int(tokens * BYTES_PER_TOKEN / BLOCK_BYTES))
        self._evict(held)

    def forget(self, address: str) -> None:
        """The endpoint has left or started anew, and its cache is empty."""
        held = self._held.pop(address, None)
        if held is not None:
            del self._addresses[held.bit]
            for run in held.all():
                self._lost(run, held.bit)

    def _new(self, address: str) -> _Held:
        bit = 1
        while bit in self._addresses:
            bit <<= 1
        self._addresses[bit] = address
        held = self._held[address] = _Held(bit)
        for other in self._held.values():
            self._evict(other)  # its share is smaller now
        return held

    def _evict(self, held: _Held) -> None:
        for blocks in held.excess(self._most // len(self._held)):
            self._lost(blocks, held.bit)

    def _gained(self, blocks: Sequence[int], bit: int) -> None:
        holders = self._holders
        # Whoever has a block has all before it, so those that somebody has come first.
        known = bisect_left(blocks, True, key=lambda block: block not in holders)
        for block in blocks[:known]:
            holders[block] |= bit
        for block in blocks[known:]:
            holders[block] = bit

    def _lost(self, blocks: Sequence[int], bit: int) -> None:
        holders = self._holders
        mask, left = bit, 0  # neighbours mostly have the same, so it is computed once
        for block in blocks:
            if (found := holders[block]) != mask:
                mask, left = found, self._common(found ^ bit)
            if left:
                holders[block] = left
            else:
                del holders[block]

    def _common(self, mask: int) -> int:
        """The same number in memory for all blocks that only this one endpoint has."""
        address = self._addresses.get(mask)
        return mask if address is None else self._held[address].bit


def _agreement(run: Sequence[int], blocks: Sequence[int], start: int) -> int:
    """How many blocks of a run are those of a prompt from `start` on: the first one at least."""
    most = min(len(run), len(blocks) - start)
    if run[most - 1] == blocks[start + most - 1]:
        return most
    return bisect_left(range(most), True, key=lambda place: run[place] != blocks[start + place])
