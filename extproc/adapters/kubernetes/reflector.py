"""Keeps a copy of a set of Kubernetes objects, by list and watch.

Theory of operation
-------------------
A list gives the whole set and its resourceVersion; a watch from that version gives every later
change. A watch that ends, breaks or becomes silent continues from the last version seen, so no
change is lost. The set is listed again only if the server no longer knows that version (410), and
every 10 to 15 minutes as a precaution. An error never changes the copy: the copy stays, and its
age grows. These are the guarantees of client-go's reflector; `backoff` has the waits between
attempts, which are longer if the server asks for it (`Retry-After`).

Over HTTP/2, watches last 5 to 10 minutes, as in client-go, because the connection itself notices a
server that no longer responds, and bookmarks show that the watch still works. HTTP/1.1 has no PING,
and a proxy or a hung server can hold a silent connection open. So watches last 20 to 30 s there:
that the server ends each watch in time proves that it still responds.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import aclosing
from math import inf
from random import Random
from time import monotonic
from typing import Generic, Protocol

from extproc.adapters.backoff import Backoff
from extproc.adapters.kubernetes.api import ALIVE, OPENED, Api, WatchSeconds
from extproc.adapters.kubernetes.errors import ApiStatusError, KubernetesError, MalformedResponse
from extproc.adapters.kubernetes.listing import EXPIRED, list_objects
from extproc.adapters.kubernetes.objects import Json
from extproc.adapters.kubernetes.resource import Kept, Resource
from extproc.adapters.kubernetes.watch_events import BookmarkWatchdog, check_order, read_event
from extproc.adapters.observability.logs import fields

log = logging.getLogger("extproc.kubernetes")

WATCH_SECONDS = (20, 30)
PINGED_WATCH_SECONDS = (300, 600)
# The API guarantees that watches lose nothing. This bounds the damage if one does all the same,
# because a store was restored from a backup or because of a bug.
RELIST_SECONDS = (600, 900)
# Lists are spread at random over this time.
LIST_SPREAD_SECONDS = 0.5
LONGEST_RETRY_SECONDS = 60.0
# A watch that exceeds its time by this much counts as silent.
_SILENCE_SECONDS = 5.0
# After a shorter watch there is a pause, so that a server that ends all at once is not flooded.
_SHORT_WATCH_SECONDS = 1.0


class WatchListener(Protocol):
    """Counts lists and watches."""

    def listed(self, resource: str, result: str) -> None:
        """Receive the result of a list."""

    def watched(self, resource: str, result: str) -> None:
        """Receive the result of a watch, at its end."""


class Reflector(Generic[Kept]):
    """A copy of a set of objects, kept by `run`; `changed` receives it after each change."""

    def __init__(
        self,
        api: Api,
        resource: Resource[Kept],
        changed: Callable[[Mapping[str, Kept]], None],
        listener: WatchListener,
        rng: Random,
    ) -> None:
        self._api = api
        self._resource = resource
        self._changed = changed
        self._listener = listener
        self._rng = rng
        self._backoff = Backoff(rng)
        self._objects: dict[str, Kept] = {}
        self._version: str | None = None
        self._relist_at = 0.0
        self._trouble: str | None = None
        self.attempted = asyncio.Event()
        """Set after the first list, even if it failed."""
        self.synced = False
        """True if the whole set was listed at least once."""
        self.confirmed_at = monotonic()
        """Monotonic time of the server's last response; at first, the time of creation."""

    @property
    def trouble(self) -> str | None:
        """Reason why the copy is not current; None if it is."""
        return self._trouble

    async def wait_for_attempt(self) -> None:
        """Return after the first list, even if it failed."""
        await self.attempted.wait()

    async def run(self) -> None:
        """Keep the copy current until cancelled; errors lead to another attempt."""
        while True:
            try:
                await self._list_and_watch()
            except Exception as error:
                if not isinstance(error, KubernetesError):
                    log.exception("unexpected error in a watch", extra=self._fields())
                    self._version = None
                self._report_trouble(error)
                self.attempted.set()
                await asyncio.sleep(self._wait(error))

    def _wait(self, error: Exception) -> float:
        """Return the seconds before the next attempt, at least those that the server asks for."""
        wait = self._backoff.next()
        asked = error.retry_after if isinstance(error, ApiStatusError) else 0.0
        # The server asks all its clients for the same wait.
        return max(wait, min(asked, LONGEST_RETRY_SECONDS) * self._rng.uniform(1.0, 1.5))

    async def _list_and_watch(self) -> None:
        """List if necessary, then watch once."""
        listed = self._version is None or monotonic() >= self._relist_at
        if listed:
            await self._list()
        began = monotonic()
        try:
            await self._watch()
        except KubernetesError as error:
            self._listener.watched(self._resource.plural, _result(error))
            if not _can_watch_again(error):
                self._version = None
            # A version that was just listed cannot have expired: then the server is at fault.
            if _is_expired(error) and not listed:
                return
            raise
        self._listener.watched(self._resource.plural, "ended")
        if monotonic() - began < _SHORT_WATCH_SECONDS:
            await asyncio.sleep(self._backoff.next())

    async def _list(self) -> None:
        # All sidecars begin to list at the same moment: after a rollout, a change of the models
        # document or a compaction.
        await asyncio.sleep(self._rng.uniform(0, LIST_SPREAD_SECONDS))
        try:
            version, objects = await list_objects(self._api, self._resource)
        except KubernetesError as error:
            self._listener.listed(self._resource.plural, _result(error))
            raise
        self._listener.listed(self._resource.plural, "ok")
        self._relist_at = monotonic() + self._rng.uniform(*RELIST_SECONDS)
        self._version = version
        self._objects = objects
        self.synced = True
        self._confirm()
        self._changed(self._objects)
        self.attempted.set()

    async def _watch(self) -> None:
        seconds = WatchSeconds(
            self._rng.randint(*PINGED_WATCH_SECONDS),
            self._rng.randint(*WATCH_SECONDS),
            _SILENCE_SECONDS,
        )
        query = {
            **self._resource.query,
            "resourceVersion": self._version,
            "allowWatchBookmarks": "true",
        }
        opened, watchdog = inf, BookmarkWatchdog()
        events = self._api.watch(self._resource.path, query, seconds)
        try:
            async with aclosing(events):
                async for event in events:
                    if event is OPENED:
                        opened = monotonic()
                        self._confirm()
                    elif event is ALIVE:
                        watchdog.check(monotonic())
                        self._confirm()
                    else:
                        watchdog.received(self._take(event), monotonic())
            self._confirm()
        finally:
            # Neither a list nor a short watch resets the backoff, so that a server that fails
            # right after them again and again receives fewer and fewer requests.
            if monotonic() - opened >= _SHORT_WATCH_SECONDS:
                self._backoff.reset()

    def _take(self, event: Json) -> str:
        """Change the copy as an event says, and return the event's kind."""
        try:
            kind, version, item = read_event(event)
        except ApiStatusError:
            # With any status, the watch cannot continue from this version.
            self._version = None
            raise
        if kind == "BOOKMARK":
            check_order(self._version or "", version)
        self._version = version
        self._confirm()
        if kind == "BOOKMARK":
            return kind
        kept = self._resource.read(item)
        if kind == "DELETED":
            self._objects.pop(kept.metadata.name, None)
        else:
            self._objects[kept.metadata.name] = kept
        self._changed(self._objects)
        return kind

    def _confirm(self) -> None:
        self.confirmed_at = monotonic()
        if self._trouble is not None:
            self._trouble = None
            log.info("watch recovered", extra=self._fields())

    def _report_trouble(self, error: Exception) -> None:
        trouble = str(error) or type(error).__name__
        if trouble != self._trouble:
            self._trouble = trouble
            log.warning("watch failed, last known objects kept", extra=self._fields(why=trouble))

    def _fields(self, **more: object) -> Mapping[str, object]:
        return fields(path=self._resource.path, selector=self._resource.selector, **more)


def _is_expired(error: KubernetesError) -> bool:
    return isinstance(error, ApiStatusError) and error.code == EXPIRED


def _can_watch_again(error: KubernetesError) -> bool:
    """Return True if a watch can continue from the last version; otherwise list again."""
    if isinstance(error, ApiStatusError):
        return error.code in (401, 403, 408, 429) or 500 <= error.code != 504
    return not isinstance(error, MalformedResponse)


def _result(error: KubernetesError) -> str:
    if isinstance(error, ApiStatusError):
        return "expired" if _is_expired(error) else str(error.code)
    return "garbled" if isinstance(error, MalformedResponse) else "unreachable"
