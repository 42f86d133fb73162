"""Adapters of endpoints, from their last readings; reports changes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from itertools import islice

from extproc.adapters.vllm.names import MOST_ADAPTERS
from extproc.core.routing.catalog import Adapters

GATHER_SECONDS = 0.02
"""Time for which changes are gathered: endpoints come and load adapters many at a time."""

# A large catalog takes time to build. Endpoints whose list changes with each reading must not
# keep the event loop busy with it.
SPACING_SECONDS = 0.2
_SHARE = 0.02


class FoundAdapters:
    """The adapters that an endpoint lists; without a list, those that its requests use.

    `changed` is called some time after a change, once for several changes.
    """

    def __init__(self, changed: Callable[[Adapters], None]) -> None:
        self._changed = changed
        self._listed: dict[str, frozenset[str]] = {}
        self._seen: dict[str, frozenset[str]] = {}
        self._reporting: asyncio.TimerHandle | None = None
        self._not_before = 0.0

    def listed(self, address: str, adapters: frozenset[str]) -> None:
        """Record the list of an endpoint."""
        if self._listed.get(address) != adapters:
            self._listed[address] = adapters
            self._report_soon()

    def not_listed(self, address: str) -> None:
        """Drop the list of an endpoint that gives none any more."""
        if self._listed.pop(address, None) is not None:
            self._report_soon()

    def seen(self, address: str, adapters: frozenset[str]) -> None:
        """Record adapters that requests use; the endpoint may have more."""
        before = self._seen.get(address, frozenset())
        if not adapters <= before and len(before) < MOST_ADAPTERS:
            room = MOST_ADAPTERS - len(before)
            self._seen[address] = before.union(islice(adapters - before, room))
            if address not in self._listed:
                self._report_soon()

    def keep_only(self, addresses: Collection[str]) -> None:
        """Forget all other endpoints."""
        for found in (self._listed, self._seen):
            for address in found.keys() - set(addresses):
                del found[address]
                self._report_soon()

    def close(self) -> None:
        """Stop reporting changes."""
        if self._reporting is not None:
            self._reporting.cancel()

    def flush(self) -> None:
        """Report a pending change now."""
        if self._reporting is not None:
            self._reporting.cancel()
            self._report()

    def _report_soon(self) -> None:
        if self._reporting is None:
            loop = asyncio.get_running_loop()
            at = max(loop.time() + GATHER_SECONDS, self._not_before)
            self._reporting = loop.call_at(at, self._report)

    def _report(self) -> None:
        self._reporting = None
        time = asyncio.get_running_loop().time
        began = time()
        found = self._seen | self._listed
        self._changed({address: adapters for address, adapters in found.items() if adapters})
        self._not_before = began + max(SPACING_SECONDS, (time() - began) / _SHARE)
