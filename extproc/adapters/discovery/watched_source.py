"""A source of endpoints, its watcher, and the endpoints selected from its addresses."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from time import monotonic

from extproc.adapters.endpoints.addresses import (
    AddressesChanged,
    FoundAddress,
    RejectedAddress,
    SourceWatcher,
)
from extproc.adapters.endpoints.selection import select_endpoints
from extproc.adapters.observability.logs import fields
from extproc.core.fleet.endpoint import Endpoint
from extproc.core.schema import Source

log = logging.getLogger("extproc.discovery")

GATHER_SECONDS = 0.02
"""Least time for which changes are gathered, because they come in bursts."""

_GATHER_RATIO = 10
"""The same in multiples of the time that the last change took: a thousand endpoints that come and
go at once take no more than a tenth of the event loop's time."""

StartWatcher = Callable[[AddressesChanged], SourceWatcher]


class WatchedSource:
    """Runs a source's watcher and publishes the selected endpoints when they change."""

    def __init__(
        self,
        start: StartWatcher,
        publish: Callable[[tuple[Endpoint, ...]], None],
        reject: Callable[[RejectedAddress], None],
        source: Source,
    ) -> None:
        self._publish = publish
        self._reject = reject
        self._source = source
        self._latest: Iterable[FoundAddress | RejectedAddress] = ()
        self._rejected: frozenset[RejectedAddress] = frozenset()
        self._published = False
        self._publishing: asyncio.TimerHandle | None = None
        self._gather_seconds = GATHER_SECONDS
        self.endpoints: tuple[Endpoint, ...] = ()
        self.watcher = start(self._changed)
        self._task = asyncio.create_task(self.watcher.run())

    async def stop(self) -> None:
        """Stop the watcher; nothing is published any more."""
        self._task.cancel()
        if self._publishing is not None:
            self._publishing.cancel()
        # The task is not awaited itself: that would hide a cancellation of the caller.
        await asyncio.wait([self._task])

    def _changed(self, addresses: Iterable[FoundAddress | RejectedAddress]) -> None:
        self._latest = addresses
        if not self._published:
            self._select()
        elif self._publishing is None:
            loop = asyncio.get_running_loop()
            self._publishing = loop.call_later(self._gather_seconds, self._select)

    def _select(self) -> None:
        began, self._publishing = monotonic(), None
        addresses = list(self._latest)
        self._report(frozenset(one for one in addresses if isinstance(one, RejectedAddress)))
        before = self.endpoints
        self.endpoints = select_endpoints(one for one in addresses if isinstance(one, FoundAddress))
        if self.endpoints != before or not self._published:
            self._published = True
            self._log(before, self.endpoints)
            self._publish(self.endpoints)
        self._gather_seconds = max(GATHER_SECONDS, _GATHER_RATIO * (monotonic() - began))

    def _report(self, rejected: frozenset[RejectedAddress]) -> None:
        for one in sorted(rejected - self._rejected):
            self._reject(one)
        self._rejected = rejected

    def _log(self, before: Sequence[Endpoint], now: Sequence[Endpoint]) -> None:
        # Hashing a thousand endpoints takes longer than hashing their texts.
        old, new = ({(one.address, one.name) for one in those} for those in (before, now))
        joined, left = len(new - old), len(old - new)
        counts = fields(source=self._source, endpoints=len(now), joined=joined, left=left)
        log.info("endpoints changed", extra=counts)
