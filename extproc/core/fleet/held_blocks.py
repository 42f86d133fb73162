"""The blocks of one endpoint's prefix cache, in runs that are used and evicted together."""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence

from extproc.core.fleet.cache_sizes import DEFAULT_TOKENS, Uses
from extproc.core.fleet.evicted_blocks import EvictedBlocks
from extproc.core.request.blocks import BLOCK_TOKENS, agreement

RUN_BLOCKS = 4
"""The overhead of a run, in blocks: about three as measured, and one for the unused capacity of
dicts that had more entries before."""

DEFAULT_BLOCKS = int(DEFAULT_TOKENS / BLOCK_TOKENS)
"""The size of a cache before the first reading."""

_SAME = 0.05
"""Relative change of a block's tokens up to which a cache keeps its number of blocks. These tokens
change with each prompt that is known. If a cache grows, the blocks evicted last count again."""

_FULL = 0.95
"""Share of its cache above which an endpoint evicts something for the next prompt."""


class HeldBlocks:
    """The blocks of one endpoint, in runs. A prompt uses a run as a whole or not at all.

    The first block identifies a run. Runs that branch off from a run are never used later than
    that run. So no run branches off from the least recently used one, and its end can be evicted.
    """

    __slots__ = (
        "_new_numbers",
        "_numbers",
        "_per_block",
        "_runs",
        "_used_at",
        "bit",
        "capacity",
        "evicted",
        "size",
        "tokens",
        "uses",
    )

    def __init__(self, bit: int, numbers: Iterator[int]) -> None:
        """`numbers` are those of new runs."""
        self.bit = bit
        self._runs: OrderedDict[int, array[int]] = OrderedDict()  # most recently used last
        self._numbers: dict[int, int] = {}  # the run of each first block
        self._new_numbers = numbers
        self._used_at: dict[int, float] = {}  # when each run was used
        self.size = 0
        self._per_block = BLOCK_TOKENS
        self.capacity = DEFAULT_BLOCKS
        """Blocks that fit into the cache."""
        self.tokens = DEFAULT_BLOCKS * BLOCK_TOKENS
        """Tokens of so many blocks."""
        self.evicted = EvictedBlocks()
        self.uses = Uses()

    def set_room(self, tokens: float, per_block: float) -> None:
        """Set the tokens that fit into the cache, and the tokens of a block."""
        if abs(per_block - self._per_block) > _SAME * self._per_block:
            self._per_block = per_block
        self.capacity = max(1, int(tokens / self._per_block))
        self.tokens = self.capacity * self._per_block

    def use(self, blocks: Sequence[int], now: float) -> tuple[Sequence[int], int]:
        """Mark a prompt as used now. Return its new blocks, and the number of its last run."""
        path: list[int] = []
        depth = 0
        while depth < len(blocks) and (number := self._numbers.get(blocks[depth])) is not None:
            run = self._runs[number]
            used = agreement(run, blocks, depth)
            path.append(number if used == len(run) else self._split(number, used))
            depth += used
        new = blocks[depth:]
        if new and path:  # so that a conversation stays one run
            self._runs[path[-1]].extend(array("Q", new))
        elif new:
            path.append(self._add(new[0], array("Q", new)))
        self.size += len(new)
        for number in reversed(path):
            self._runs.move_to_end(number)
            self._used_at[number] = now
        return new, path[-1] if path else 0

    def run_ending(self, blocks: Sequence[int], depth: int) -> int:
        """Return the number of the run that ends after this many blocks of a prompt; 0 if none."""
        found, end = 0, 0
        while end < depth and (number := self._numbers.get(blocks[end])) is not None:
            run = self._runs[number]
            used = agreement(run, blocks, end)
            found = number if used == len(run) else 0
            end += used
        return found if end == depth else 0

    def used_runs(self) -> Iterator[tuple[float, Sequence[int]]]:
        """Yield the runs, the least recently used first, with the times of their last uses."""
        return ((self._used_at[number], run) for number, run in self._runs.items())

    def restore(self, blocks: Sequence[int], at: float) -> bool:
        """Add a run that was last used at that time; return False if it is empty or known."""
        if not blocks or blocks[0] in self._numbers:
            return False
        self._used_at[self._add(blocks[0], array("Q", blocks))] = at
        self.size += len(blocks)
        return True

    def restore_evicted(self) -> Iterator[Sequence[int]]:
        """Add and yield the blocks that were evicted last, as the least recently used ones."""
        evicted, self.evicted = self.evicted, EvictedBlocks()
        for used_at, blocks in evicted.latest_first():
            if self.restore(blocks, used_at):
                self._runs.move_to_end(self._numbers[blocks[0]], last=False)
                yield blocks

    def excess(self, share: int) -> Iterator[Sequence[int]]:
        """Evict and yield the blocks above the limit, from the ends of the least recent runs."""
        while (more := self._more(share)) > 0:
            number, run = next(iter(self._runs.items()))
            kept = max(0, len(run) - more)
            self.evicted.add(run[kept:], self._used_at[number], min(self.capacity, share))
            self.size -= len(run) - kept
            if kept:
                self._runs[number] = run[:kept]  # a copy: a shortened array may keep its memory
            else:
                del self._runs[number], self._used_at[number]
                self._numbers.pop(run[0], None)
            yield run[kept:]

    @property
    def is_full(self) -> bool:
        """True if the next prompt evicts something from the engine's cache."""
        return self.size >= _FULL * self.capacity

    def oldest(self) -> float | None:
        """Return when the blocks that are evicted next were used; None if there is room."""
        return self._used_at[next(iter(self._runs))] if self.is_full else None

    def all(self) -> Iterable[Sequence[int]]:
        """Return the blocks, run by run."""
        return self._runs.values()

    def _more(self, share: int) -> int:
        """Return the number of blocks above the engine's capacity or above this index's share."""
        return max(self.size - self.capacity, self.size + RUN_BLOCKS * len(self._runs) - share)

    def _add(self, first: int, run: array[int]) -> int:
        # `first` is an integer object that other dicts share; one from the array would be new.
        number = next(self._new_numbers)
        self._runs[number] = run
        self._numbers[first] = number
        return number

    def _split(self, number: int, used: int) -> int:
        """Make the used beginning of a run a run of its own; the rest keeps its age.

        Otherwise the end of one prompt would never be evicted if many prompts share its beginning.
        """
        run = self._runs[number]
        self._runs[number] = run[used:]
        self._numbers[run[used]] = number
        beginning = self._add(run[0], run[:used])
        self._used_at[beginning] = self._used_at[number]
        return beginning
