"""Host names of the models document, each kept resolved by its own task.

Theory of operation
-------------------
A name is looked up again when its TTL ends. A lookup without a response leaves the last addresses
in force, for as long as it takes, and is repeated with backoff. A response that there are no
addresses is repeated every few seconds: Kubernetes' DNS gives it for a Service that scaled to
zero, but sometimes also in error. So the last addresses stay in force for HOLD_SECONDS of such
responses and are then removed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from random import Random
from time import monotonic
from typing import Literal, Protocol

from extproc.adapters.backoff import Backoff
from extproc.adapters.dns.lookup import LookupFailed, NoAddresses, Resolve, Resolved, Unanswered
from extproc.adapters.observability.logs import fields

log = logging.getLogger("extproc.discovery")

SHORTEST_SECONDS = 1.0
"""Shortest time between two lookups of a name, for TTLs near 0."""

LONGEST_SECONDS = 30.0
"""Longest time between two lookups: Docker's DNS gives a TTL of 600 s to containers that may be
replaced within seconds."""

MISSING_SECONDS = 5.0
"""Time to the next lookup of a name that has no addresses."""

HOLD_SECONDS = 30.0
"""Time for which the last addresses stay in force while the name server reports none."""

START_SECONDS = 30.0
"""Time for which the sidecar waits at its start for the first response about a name."""

MOST_AT_ONCE = 100
"""Concurrent lookups: each uses a file descriptor."""

Sleep = Callable[[float], Awaitable[object]]


class LookupListener(Protocol):
    """Counts lookups."""

    def looked_up(self, result: Literal["ok", "none", "failed"]) -> None:
        """Receive the result of a lookup: addresses, no addresses, or no usable response."""


class Name:
    """One host name and its addresses."""

    def __init__(
        self,
        host: str,
        resolve: Resolve,
        listener: LookupListener,
        rng: Random,
        *,
        clock: Callable[[], float],
        sleep: Sleep,
    ) -> None:
        self.host = host
        self.addresses: tuple[str, ...] = ()
        """The addresses in force, in sorted order."""
        self.attempted = asyncio.Event()
        """Set after the first lookup, even if it failed."""
        self.confirmed_at = clock()
        """Time at which the addresses were last known to be current, by the clock."""
        self.trouble: str | None = None
        """Reason why the last lookup gave no addresses; None if it gave some."""
        self.subscribers: list[Callable[[], None]] = []
        """Callbacks for the first lookup and each change of the addresses."""
        self._resolve = resolve
        self._listener = listener
        self._backoff = Backoff(rng)
        self._clock = clock
        self._sleep = sleep
        self._started_at = clock()
        self._responded = False
        self._missing_since: float | None = None
        self._task = asyncio.create_task(self._run())

    @property
    def synced(self) -> bool:
        """True if a name server responded or the waiting time is over."""
        return self._responded or self._clock() - self._started_at >= START_SECONDS

    async def stop(self) -> None:
        """Stop the lookups."""
        self._task.cancel()
        # The task is not awaited itself: that would hide a cancellation of the caller.
        await asyncio.wait([self._task])

    async def _run(self) -> None:
        while True:
            await self._sleep(await self._look_up())

    async def _look_up(self) -> float:
        """Look the name up once; return the seconds to wait before the next lookup."""
        try:
            found = await self._resolve(self.host)
        except NoAddresses as failure:
            self._listener.looked_up("none")
            return self._missing(failure)
        except Unanswered as failure:
            self._listener.looked_up("failed")
            return self._unanswered(failure)
        self._listener.looked_up("ok")
        self._recover()
        self._take(tuple(sorted(found.addresses)))
        return min(max(found.ttl, SHORTEST_SECONDS), LONGEST_SECONDS)

    def _missing(self, failure: NoAddresses) -> float:
        now = self._clock()
        if self._missing_since is None:
            self._missing_since = now
        self._report_trouble(failure)
        self._backoff.reset()
        if not self.addresses or now - self._missing_since >= HOLD_SECONDS:
            self._take(())
        return MISSING_SECONDS

    def _unanswered(self, failure: Unanswered) -> float:
        self._missing_since = None
        self._report_trouble(failure)
        if not self.attempted.is_set():
            self._notify()
        return self._backoff.next()

    def _take(self, addresses: tuple[str, ...]) -> None:
        """Put the addresses of a response in force."""
        changed = addresses != self.addresses or not self.attempted.is_set()
        self.addresses = addresses
        self._responded = True
        self.confirmed_at = self._clock()
        if changed:
            self._notify()

    def _notify(self) -> None:
        self.attempted.set()
        for callback in list(self.subscribers):
            callback()

    def _report_trouble(self, failure: LookupFailed) -> None:
        why = str(failure)
        if why != self.trouble:
            self.trouble = why
            kept = len(self.addresses)
            why_not = fields(host=self.host, why=why, addresses_kept=kept)
            log.warning("endpoint name not resolved", extra=why_not)

    def _recover(self) -> None:
        self._missing_since = None
        self._backoff.reset()
        if self.trouble is not None:
            self.trouble = None
            log.info("endpoint name resolved", extra=fields(host=self.host))


class Names:
    """All host names; a name that several models use is looked up once."""

    def __init__(
        self,
        resolve: Resolve,
        listener: LookupListener,
        rng: Random,
        *,
        clock: Callable[[], float] = monotonic,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        self._resolve = resolve
        self._listener = listener
        self._rng = rng
        self._clock = clock
        self._sleep = sleep
        self._names: dict[str, Name] = {}
        self._slots = asyncio.Semaphore(MOST_AT_ONCE)

    def subscribe(self, host: str, callback: Callable[[], None]) -> Name:
        """Return the name and call `callback` after each change; its addresses may be known."""
        name = self._names.get(host)
        if name is None:
            name = self._names[host] = Name(
                host,
                self._in_turn,
                self._listener,
                self._rng,
                clock=self._clock,
                sleep=self._sleep,
            )
        name.subscribers.append(callback)
        return name

    async def unsubscribe(self, name: Name, callback: Callable[[], None]) -> None:
        """Stop calling `callback`; a name without subscribers is forgotten."""
        name.subscribers.remove(callback)
        if not name.subscribers:
            del self._names[name.host]
            await name.stop()

    async def _in_turn(self, host: str) -> Resolved:
        async with self._slots:
            return await self._resolve(host)
