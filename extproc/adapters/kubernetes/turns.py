"""Limits the requests that wait for the API server at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

MOST_AT_ONCE = 4
"""A start or a reload lists every source. Without a limit, a few sidecars with hundreds of sources
fill the API server's queue, and it refuses requests (429)."""

LONGEST_SECONDS = 3.0
"""A request that takes longer gives up its turn, so that requests that hang do not block others."""


class Turns:
    """Requests take turns, in the order in which they come."""

    def __init__(self) -> None:
        self._free = asyncio.Semaphore(MOST_AT_ONCE)

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Wait for a turn, and hold it until the end of the block or for the longest time."""
        await self._free.acquire()
        held = True

        def give_up() -> None:
            nonlocal held
            if held:
                held = False
                self._free.release()

        expiry = asyncio.get_running_loop().call_later(LONGEST_SECONDS, give_up)
        try:
            yield
        finally:
            expiry.cancel()
            give_up()
