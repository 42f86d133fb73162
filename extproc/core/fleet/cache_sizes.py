"""The tokens that the caches of each endpoint keep, learned from the engine's hits.

vLLM reports the size of its KV cache on the GPU. With KV offloading, it also finds blocks in host
memory, on disks or in a shared store. It does not report these sizes. Other engines report no size
at all. So the index remembers what it evicted last. If the engine still finds most of that, its
caches are assumed to keep twice as much. If it later finds clearly less than expected, they are
assumed to keep half as much, but never less than reported.

The engine counts hits as shares of all prompt tokens, so they are only compared while all prompts
are known.
"""

from __future__ import annotations

from math import log2, sqrt
from operator import add, sub
from typing import NamedTuple

from extproc.core.fleet.report import Report
from extproc.core.request.blocks import BLOCK_TOKENS

DEFAULT_TOKENS = 65_536
"""The size of a cache that is not reported: an L4 with an 8B model has as much."""

_EVIDENCE = 0.0625
"""Share of a cache's size that evicted blocks must have for a judgement."""

_LEAST_SHARE = 0.02
"""Share of the expected hits that they must have: smaller ones are less than the error of these."""

_MOST_SENT = 8.0
"""Size of the prompts after which half of the evidence is forgotten, in caches."""

_ENOUGH = 0.5
"""Share of the evicted blocks that the engine must find for a larger size."""

_TOO_FEW = 0.7
"""Share of the expected hits below which a learned size is too large."""

_MOST_TIMES = 64.0
"""Largest learned size, as a multiple of the reported one."""

_KINDS = 10.0
"""Kinds of engines for each doubling of the size: equal servers differ by a few blocks."""


class Uses:
    """Blocks of the prompts that were sent to an endpoint."""

    __slots__ = ("evicted", "found", "sent")

    def __init__(self) -> None:
        self.sent = 0.0
        """Blocks of all prompts."""
        self.found = 0.0
        """Those of them that the index held."""
        self.evicted = 0.0
        """Those of them, after the ones found, that it had evicted last."""

    def count(self, sent: int, new: int, evicted: int) -> None:
        """Add a prompt.

        Of the first block that the index does not have, the engine has half on average, because its
        blocks are smaller.
        """
        self.sent += sent
        self.found += sent - new + (0.5 if 0 < new < sent else 0.0)
        self.evicted += evicted


class _Kind:
    """The caches of all engines that report about the same size."""

    __slots__ = ("_sum", "_tokens", "members", "times")

    def __init__(self, tokens: int) -> None:
        self._tokens = tokens
        self.members: set[str] = set()
        """The addresses of these engines."""
        self.times = 1.0
        """Learned size, as a multiple of the reported one."""
        self._sum = _NOTHING

    def add(self, more: _Counts) -> None:
        """Add what was counted for an engine since its last reading, and judge."""
        self._sum = now = _Counts(*map(add, self._sum, more))
        # A prompt counts as sent before the engine counts its tokens. This error does not grow
        # with time, but with the number of engines.
        blocks = self.times * self._tokens / BLOCK_TOKENS * sqrt(len(self.members))
        is_much = now.evicted >= max(_EVIDENCE * blocks, _LEAST_SHARE * now.found)
        if is_much and now.hits - now.found >= _ENOUGH * now.evicted:
            self._resize(min(2 * self.times, _MOST_TIMES))
        elif now.sent >= _MOST_SENT * blocks:
            self._sum = _Counts(*(one / 2 for one in now))
            if now.hits < _TOO_FEW * now.found:
                self._resize(max(self.times / 2, 1.0))

    def _resize(self, times: float) -> None:
        self.times, self._sum = times, _NOTHING


class _Counts(NamedTuple):
    """Counters of an engine, in tokens, and of the index of its blocks, all of one moment."""

    prompts: float
    cached: float
    sent: float
    found: float
    evicted: float

    @property
    def hits(self) -> float:
        """Blocks that the engine found, of those that were sent."""
        return self.sent * self.cached / self.prompts if self.prompts > 0 else 0.0


_NOTHING = _Counts(0.0, 0.0, 0.0, 0.0, 0.0)


class CacheSizes:
    """Sizes by endpoint address."""

    def __init__(self) -> None:
        self._kinds: dict[int, _Kind] = {}
        self._before: dict[str, _Counts] = {}

    def read(self, address: str, report: Report, uses: Uses | None) -> float:
        """Take a reading of an engine, and return the tokens that its caches keep.

        `uses` are those of an index for a cache of that size, if it is full and if all prompts are
        known.
        """
        tokens = report.cache_tokens or DEFAULT_TOKENS
        number = round(_KINDS * log2(tokens))
        kind = self._kinds.get(number)
        if kind is None:
            kind = self._kinds[number] = _Kind(tokens)
        kind.members.add(address)
        before = self._before.pop(address, None)
        now = _counts(report, uses) if uses else None
        if now is not None:
            self._before[address] = now
            if before is not None:
                more = _Counts(*map(sub, now, before))
                if min(more) >= 0:  # else the engine or the index has started again
                    kind.add(more)
        return tokens * kind.times

    def forget(self, address: str) -> None:
        """Forget an endpoint that left or restarted."""
        self._before.pop(address, None)
        for kind in self._kinds.values():
            kind.members.discard(address)


def _counts(report: Report, uses: Uses) -> _Counts | None:
    if report.prompt_tokens is None or report.cached_tokens is None:
        return None
    return _Counts(report.prompt_tokens, report.cached_tokens, uses.sent, uses.found, uses.evicted)
