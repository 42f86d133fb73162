"""Discovery: one watcher for each source of endpoints that the models document names."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from random import Random
from time import monotonic
from typing import Protocol

from extproc.adapters.discovery.watched_source import StartWatcher, WatchedSource
from extproc.adapters.dns.lookup import Resolve
from extproc.adapters.dns.names import LookupListener, Names
from extproc.adapters.dns.resolver import Resolver
from extproc.adapters.dns.watcher import NamesWatcher
from extproc.adapters.endpoints.addresses import (
    AddressesChanged,
    RejectedAddress,
    SourceWatcher,
)
from extproc.adapters.kubernetes.cluster import Cluster
from extproc.adapters.kubernetes.pool_watcher import PoolWatcher
from extproc.adapters.kubernetes.reflector import WatchListener
from extproc.adapters.kubernetes.service_watcher import ServiceWatchers
from extproc.adapters.observability.logs import fields
from extproc.core.fleet.endpoint import Endpoint
from extproc.core.schema import NamedEndpoints, ServiceSpec, Source

log = logging.getLogger("extproc.discovery")

SETTLE_SECONDS = 5.0
"""Time for which a new configuration waits for the first endpoints of its new sources."""

# A source that produces countless bad addresses must not flood the log.
_LOGGED_ADDRESSES = 10_000

Publish = Callable[[Source, tuple[Endpoint, ...]], None]
"""Receives the endpoints of a source after each change."""


class DiscoveryListener(WatchListener, LookupListener, Protocol):
    """Counts watches, lookups and rejected addresses."""

    def endpoint_refused(self, source: Source, reason: str) -> None:
        """Receive the reason for a rejected address."""


class Discovery:
    """Watches sources; `publish` receives the endpoints of a source when they change."""

    def __init__(
        self,
        cluster: Cluster,
        publish: Publish,
        listener: DiscoveryListener,
        rng: Random,
        resolve: Resolve | None = None,
    ) -> None:
        self._cluster = cluster
        self._names = Names(resolve or Resolver().resolve, listener, rng)
        self._publish = publish
        self._listener = listener
        self._rng = rng
        self._services = ServiceWatchers(listener, rng)
        self._sources: dict[Source, WatchedSource] = {}
        self._logged: set[str] = set()

    async def watch(self, sources: Iterable[Source]) -> None:
        """Watch these sources in addition, and wait a few seconds for their first endpoints.

        Raises KubernetesError if a source needs credentials and there are none.
        """
        new: list[WatchedSource] = []
        for source in sources:
            if source not in self._sources:
                start = await self._start_watcher(source)
                watched = WatchedSource(
                    start, partial(self._publish, source), partial(self._reject, source), source
                )
                self._sources[source] = watched
                new.append(watched)
        with suppress(TimeoutError):
            async with asyncio.timeout(SETTLE_SECONDS):
                for watched in new:
                    await watched.watcher.wait_for_attempt()

    async def keep_only(self, sources: Iterable[Source]) -> None:
        """Stop watching all other sources."""
        for source in self._sources.keys() - set(sources):
            await self._sources.pop(source).stop()

    def endpoints(self, source: Source) -> tuple[Endpoint, ...]:
        """Return the last known endpoints of a source; none if it was never read."""
        watched = self._sources.get(source)
        return watched.endpoints if watched else ()

    def age(self, source: Source) -> float:
        """Return the seconds since a source's endpoints were last known to be current."""
        watched = self._sources.get(source)
        return monotonic() - watched.watcher.confirmed_at if watched else 0.0

    def why_not_synced(self) -> str | None:
        """Return the first source that was never read, and the reason; None if all were read."""
        for source, watched in self._sources.items():
            if not watched.watcher.synced:
                return f"{source}: {watched.watcher.trouble or 'waiting for the API server'}"
        return None

    async def _start_watcher(self, source: Source) -> StartWatcher:
        """Return the function that starts a source's watcher. Raises KubernetesError."""
        if isinstance(source, NamedEndpoints):
            return partial(NamesWatcher, source, self._names)
        connection = await self._cluster.connection()

        def start(changed: AddressesChanged) -> SourceWatcher:
            if isinstance(source, ServiceSpec):
                return self._services.watcher(source, connection, changed)
            return PoolWatcher(source, connection, changed, self._listener, self._rng)

        return start

    def _reject(self, source: Source, rejected: RejectedAddress) -> None:
        """Count a rejected address; log each address once."""
        self._listener.endpoint_refused(source, rejected.reason)
        if rejected.address not in self._logged and len(self._logged) < _LOGGED_ADDRESSES:
            self._logged.add(rejected.address)
            why = fields(source=source, address=rejected.address, reason=rejected.reason)
            log.warning("address rejected", extra=why)
