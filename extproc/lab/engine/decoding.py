"""The decoding requests of a batch, advanced together without examining each one.

A decoding request advances by one token per step, so its progress follows from the number of steps
since it began. Once in `block_size` steps it needs another block, and one step earlier it fills a
block. Requests are grouped by *phase*: the step, modulo `block_size`, in which that happens. A step
examines only two phases. Its cost is therefore proportional to what changes, and a simulated fleet
runs a hundred times faster than the engines it models.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from heapq import merge
from operator import attrgetter

from extproc.lab.engine.request import Sequence

_ORDER = attrgetter("order")


class Decoding:
    """The decoding sequences, in order of admission."""

    def __init__(self, block_size: int) -> None:
        self._size = block_size
        self._all: dict[int, Sequence] = {}
        self._phases: list[dict[int, Sequence]] = [{} for _ in range(block_size)]
        self._ends: defaultdict[int, list[Sequence]] = defaultdict(list)
        self._step = 0
        self.context = 0
        """Known tokens of all sequences together."""

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._all.values())

    def __contains__(self, sequence: Sequence) -> bool:
        return self._all.get(sequence.request.request_id) is sequence

    @property
    def request_ids(self) -> list[int]:
        """Request ids of all sequences."""
        return list(self._all)

    def add(self, sequence: Sequence) -> None:
        """Add a sequence that got a token in this step and decodes from the next one."""
        request = sequence.request
        sequence.ends = self._step + request.output_tokens - sequence.generated
        self._ends[sequence.ends].append(sequence)
        self._all[request.request_id] = sequence
        self._phases[self._phase(sequence)][request.request_id] = sequence
        self.context += self.known(sequence)

    def remove(self, sequence: Sequence) -> None:
        """Remove a sequence that finished or lost its blocks, and update its `generated`."""
        request_id = sequence.request.request_id
        known = self.known(sequence)
        sequence.generated = known - sequence.request.prompt_tokens
        self.context -= known
        del self._all[request_id]
        del self._phases[self._phase(sequence)][request_id]

    def known(self, sequence: Sequence) -> int:
        """Return the number of prompt tokens and generated tokens of a sequence."""
        request = sequence.request
        return request.prompt_tokens + request.output_tokens - (sequence.ends - self._step)

    def remaining(self, sequence: Sequence) -> int:
        """Return the number of steps until a sequence has its last token."""
        return sequence.ends - self._step

    def at_a_boundary(self) -> list[Sequence]:
        """Return the sequences whose next token begins or fills a block."""
        beginning = self._phases[(1 - self._step) % self._size]
        if self._size == 1:
            return list(beginning.values())
        filling = self._phases[-self._step % self._size]
        if not filling or not beginning:
            return list((beginning or filling).values())
        return list(merge(beginning.values(), filling.values(), key=_ORDER))

    def advance(self) -> list[Sequence]:
        """Give each sequence a token, and return those that got their last one."""
        self._step += 1
        self.context += len(self._all)
        # A preempted request may be listed twice, if steps without decoding computed it again.
        ending = dict.fromkeys(self._ends.pop(self._step, ()))
        # Otherwise a request that was preempted meanwhile ends in a later step.
        over = (one for one in ending if one.ends == self._step and one in self)
        return sorted(over, key=_ORDER)

    def _phase(self, sequence: Sequence) -> int:
        return (self.known(sequence) - self._step) % self._size
