"""Discovery: the endpoints of every source that the configuration names, kept current."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from random import Random
from time import monotonic
from typing import Protocol

from extproc.adapters.dns.follower import NamesFollower
from extproc.adapters.dns.names import Names, NamesObserver
from extproc.adapters.dns.resolver import Resolve, Resolver
from extproc.adapters.kubernetes.cluster import Cluster
from extproc.adapters.kubernetes.endpoint_slices import Rejected
from extproc.adapters.kubernetes.follower import Changed, Follower, follow
from extproc.adapters.kubernetes.reflector import Observer
from extproc.adapters.kubernetes.selection import Found, choose
from extproc.adapters.observability.logs import fields
from extproc.core.fleet.endpoint import Endpoint
from extproc.core.schema import NamedEndpoints, Source

log = logging.getLogger("extproc.discovery")

# Events come in bursts, and a model with many endpoints takes a while to put on the ring.
GATHER_SECONDS = 0.02
# How long a new configuration waits for endpoints of sources it is the first to name.
SETTLE_SECONDS = 5.0
# Who floods discovery with poison shall not flood the log too.
_LOGGED_ADDRESSES = 10_000


class DiscoveryObserver(Observer, NamesObserver, Protocol):
    """Counts what discovery does."""

    def endpoint_refused(self, source: Source, reason: str) -> None:
        """An address was found that is never routed to."""


Publish = Callable[[Source, tuple[Endpoint, ...]], None]


class Discovery:
    """One follower for each source; `publish` is called when a source's endpoints change."""

    def __init__(
        self,
        cluster: Cluster,
        publish: Publish,
        observer: DiscoveryObserver,
        rng: Random,
        resolve: Resolve | None = None,
    ) -> None:
        self._cluster = cluster
        self._names = Names(resolve or Resolver().resolve, observer, rng)
        self.publish = publish
        self.observer = observer
        self.rng = rng
        self._followed: dict[Source, _Followed] = {}
        self._logged: set[str] = set()

    async def follow(self, sources: Iterable[Source]) -> None:
        """Follows these too, and waits a while for the first word on them.

        Raises KubernetesError without credentials.
        """
        new: list[_Followed] = []
        for source in sources:
            if source not in self._followed:
                begin = await self._follower(source)
                self._followed[source] = followed = _Followed(self, source, begin)
                new.append(followed)
        with suppress(TimeoutError):
            async with asyncio.timeout(SETTLE_SECONDS):
                for followed in new:
                    await followed.follower.attempt()

    async def keep_only(self, sources: Iterable[Source]) -> None:
        """Stops following all others."""
        for source in self._followed.keys() - set(sources):
            await self._followed.pop(source).stop()

    def endpoints(self, source: Source) -> tuple[Endpoint, ...]:
        """What is known of a source; nothing before it is."""
        followed = self._followed.get(source)
        return followed.endpoints if followed else ()

    def age(self, source: Source) -> float:
        """Seconds since a source's endpoints were last known to be current."""
        followed = self._followed.get(source)
        return monotonic() - followed.follower.confirmed_at if followed else 0.0

    def why_not_synced(self) -> str | None:
        """The first source whose endpoints were never known, and why; None if there is none."""
        for source, followed in self._followed.items():
            if not followed.follower.synced:
                return f"{source}: {followed.follower.trouble or 'waiting for the API server'}"
        return None

    async def _follower(self, source: Source) -> Callable[[Changed], Follower]:
        """Return how to begin to follow a source. Raises KubernetesError without credentials."""
        if isinstance(source, NamedEndpoints):
            return partial(NamesFollower, source, self._names)
        connection = await self._cluster.connection()
        return lambda changed: follow(source, connection, changed, self.observer, self.rng)

    def refuse(self, source: Source, rejected: Rejected) -> None:
        """Counts an address that is never routed to; the log names each once."""
        self.observer.endpoint_refused(source, rejected.reason)
        if rejected.address not in self._logged and len(self._logged) < _LOGGED_ADDRESSES:
            self._logged.add(rejected.address)
            why = fields(source=source, address=rejected.address, reason=rejected.reason)
            log.warning("address is never routed to", extra=why)


class _Followed:
    """A source, what was found of it, and the task that keeps it current."""

    def __init__(
        self, discovery: Discovery, source: Source, begin: Callable[[Changed], Follower]
    ) -> None:
        self._discovery = discovery
        self._source = source
        self._latest: Iterable[Found | Rejected] = ()
        self._rejected: frozenset[Rejected] = frozenset()
        self._published = False
        self._publishing: asyncio.TimerHandle | None = None
        self.endpoints: tuple[Endpoint, ...] = ()
        self.follower = begin(self._changed)
        self._task = asyncio.create_task(self.follower.run())

    def _changed(self, found: Iterable[Found | Rejected]) -> None:
        self._latest = found
        if not self._published:
            self._publish()
        elif self._publishing is None:
            loop = asyncio.get_running_loop()
            self._publishing = loop.call_later(GATHER_SECONDS, self._publish)

    def _publish(self) -> None:
        self._publishing = None
        found = list(self._latest)
        self._refuse(frozenset(one for one in found if isinstance(one, Rejected)))
        before, self.endpoints = (
            self.endpoints,
            choose(one for one in found if isinstance(one, Found)),
        )
        if self.endpoints != before or not self._published:
            self._published = True
            self._log(set(before), set(self.endpoints))
            self._discovery.publish(self._source, self.endpoints)

    def _refuse(self, rejected: frozenset[Rejected]) -> None:
        for one in sorted(rejected - self._rejected):
            self._discovery.refuse(self._source, one)
        self._rejected = rejected

    def _log(self, before: set[Endpoint], now: set[Endpoint]) -> None:
        joined, left = len(now - before), len(before - now)
        counts = fields(source=self._source, endpoints=len(now), joined=joined, left=left)
        log.info("endpoints", extra=counts)

    async def stop(self) -> None:
        self._task.cancel()
        if self._publishing is not None:
            self._publishing.cancel()
        # Not awaited itself: should we be cancelled meanwhile, that must not pass for its end.
        await asyncio.wait([self._task])
