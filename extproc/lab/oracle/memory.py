"""The blocks that one engine has, or will have when it has served its queue."""

from __future__ import annotations

from bisect import bisect_left
from itertools import islice

from extproc.lab.engine.kv_cache import BlockId
from extproc.lab.engine.replica import Replica, SimRequest
from extproc.lab.oracle.course import Ahead


class Memory:
    """The cache of one engine with the prompts in its queue."""

    def __init__(self, replica: Replica) -> None:
        self.replica = replica
        self._size = replica.profile.block_size
        self._coming: dict[BlockId, int] = {}
        self._cached: dict[int, int] = {}

    @property
    def waiting(self) -> list[Ahead]:
        """The engine's queue in its order."""
        return [
            Ahead(
                one.known,
                max(1, one.known - self._cached.get(number, 0)),
                one.request.output_tokens - one.generated,
                one.request.adapter,
            )
            for number, one in self.replica.scheduler.waiting.items()
        ]

    def cached_tokens(self, request: SimRequest) -> int:
        """Return the prompt tokens that the engine need not compute if it is sent here now.

        A block is never there without those before it, so a binary search finds the first miss.
        """
        most = (request.prompt_tokens - 1) // self._size
        return self._size * bisect_left(
            request.blocks, True, hi=most, key=lambda block: not self._has(block)
        )

    def sent(self, request: SimRequest, cached: int) -> None:
        """Record a request that was sent here, whose prompt others will find."""
        if len(self._coming) > 2 * self.replica.cache.capacity:
            self._coming = {b: n for b, n in self._coming.items() if self._is_here(n)}
            self._cached = {n: tokens for n, tokens in self._cached.items() if self._is_here(n)}
        self._cached[request.request_id] = cached
        whole = request.prompt_tokens // self._size
        fresh = islice(request.blocks, cached // self._size, whole)
        self._coming.update(dict.fromkeys(fresh, request.request_id))

    def _has(self, block: BlockId) -> bool:
        if self.replica.keeps(block):
            return True
        number = self._coming.get(block)
        return number is not None and self._is_here(number)

    def _is_here(self, number: int) -> bool:
        scheduler = self.replica.scheduler
        return number in scheduler.waiting or number in scheduler.running
