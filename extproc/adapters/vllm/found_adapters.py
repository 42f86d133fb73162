"""Which adapters endpoints have, by what they said last; tells when that changes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from itertools import islice

from extproc.adapters.vllm.names import MOST_ADAPTERS
from extproc.core.routing.catalog import Adapters

# Endpoints come, and are told to load adapters, many at a time.
GATHER_SECONDS = 0.02
# Building a catalog takes time, the more the larger it is: endpoints that say something
# else each time shall not keep us at it.
SPACING_SECONDS = 0.2
_SHARE = 0.02


class FoundAdapters:
    """What an endpoint lists is the truth; where it lists nothing, what its requests used counts.

    `changed` is called some time after a change, once for all that came together.
    """

    def __init__(self, changed: Callable[[Adapters], None]) -> None:
        self._changed = changed
        self._listed: dict[str, frozenset[str]] = {}
        self._seen: dict[str, frozenset[str]] = {}
        self._telling: asyncio.TimerHandle | None = None
        self._not_before = 0.0

    def listed(self, address: str, adapters: frozenset[str]) -> None:
        """The endpoint has these and no others."""
        if self._listed.get(address) != adapters:
            self._listed[address] = adapters
            self._tell_soon()

    def not_listed(self, address: str) -> None:
        """The endpoint gives no list, or no longer."""
        if self._listed.pop(address, None) is not None:
            self._tell_soon()

    def seen(self, address: str, adapters: frozenset[str]) -> None:
        """Requests there use these; it may have more."""
        before = self._seen.get(address, frozenset())
        if not adapters <= before and len(before) < MOST_ADAPTERS:
            room = MOST_ADAPTERS - len(before)
            self._seen[address] = before.union(islice(adapters - before, room))
            if address not in self._listed:
                self._tell_soon()

    def keep_only(self, addresses: Collection[str]) -> None:
        """These are the endpoints that are asked; what others said is forgotten."""
        for said in (self._listed, self._seen):
            for address in said.keys() - set(addresses):
                del said[address]
                self._tell_soon()

    def close(self) -> None:
        """Tells nothing more."""
        if self._telling is not None:
            self._telling.cancel()

    def tell(self) -> None:
        """Calls `changed` now, if it was to be called."""
        if self._telling is not None:
            self._telling.cancel()
            self._tell()

    def _tell_soon(self) -> None:
        if self._telling is None:
            loop = asyncio.get_running_loop()
            at = max(loop.time() + GATHER_SECONDS, self._not_before)
            self._telling = loop.call_at(at, self._tell)

    def _tell(self) -> None:
        self._telling = None
        time = asyncio.get_running_loop().time
        began = time()
        found = self._seen | self._listed
        self._changed({address: adapters for address, adapters in found.items() if adapters})
        self._not_before = began + max(SPACING_SECONDS, (time() - began) / _SHARE)
