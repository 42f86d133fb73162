"""The requests of a batch that have a token in every step, without looking at each of them.

Theory of operation. A decoding request advances by one token a step, so all about it follows
from the number of steps since it began. Once in `block_size` steps it needs a block more, and
in the step before it has filled one: requests are kept by *phase*, the step modulo
`block_size` in which that happens, and a step looks at two phases of them. That
makes a step cost what changes in it, and a simulated fleet a hundred times faster than its model.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from heapq import merge
from operator import attrgetter

from extproc.lab.engine.request import Progress

_ORDER = attrgetter("order")


class Decoding:
    """In order of admission."""

    def __init__(self, block_size: int) -> None:
        self._size = block_size
        self._all: dict[int, Progress] = {}
        self._phases: list[dict[int, Progress]] = [{} for _ in range(block_size)]
        self._ends: defaultdict[int, list[Progress]] = defaultdict(list)
        self._step = 0
        self.context = 0
        """Tokens that are known of all of them together."""

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[Progress]:
        return iter(self._all.values())

    def __contains__(self, sequence: Progress) -> bool:
        return self._all.get(sequence.request.request_id) is sequence

    @property
    def request_ids(self) -> list[int]:
        """Of all of them."""
        return list(self._all)

    def add(self, sequence: Progress) -> None:
        """It has just got a token, and decodes from the next step on."""
        request = sequence.request
        sequence.ends = self._step + request.output_tokens - sequence.generated
        self._ends[sequence.ends].append(sequence)
        self._all[request.request_id] = sequence
        self._phases[self._phase(sequence)][request.request_id] = sequence
        self.context += self.known(sequence)

    def remove(self, sequence: Progress) -> None:
        """It is over, or has lost its blocks."""
        request_id = sequence.request.request_id
        known = self.known(sequence)
        sequence.generated = known - sequence.request.prompt_tokens
        self.context -= known
        del self._all[request_id]
        del self._phases[self._phase(sequence)][request_id]

    def known(self, sequence: Progress) -> int:
        """Tokens of its prompt and those generated."""
        request = sequence.request
        return request.prompt_tokens + request.output_tokens - (sequence.ends - self._step)

    def at_a_boundary(self) -> list[Progress]:
        """Those that begin a block in the next step, or fill one."""
        beginning = self._phases[(1 - self._step) % self._size]
        if self._size == 1:
            return list(beginning.values())
        filling = self._phases[-self._step % self._size]
        if not filling or not beginning:
            return list((beginning or filling).values())
        return list(merge(beginning.values(), filling.values(), key=_ORDER))

    def advance(self) -> list[Progress]:
        """A step is over: each has a token more. Those that had their last."""
        self._step += 1
        self.context += len(self._all)
        ending = self._ends.pop(self._step, ())
        # A request that was preempted has another end by now.
        over = (one for one in ending if one.ends == self._step and one in self)
        return sorted(over, key=_ORDER)

    def _phase(self, sequence: Progress) -> int:
        return (self.known(sequence) - self._step) % self._size
