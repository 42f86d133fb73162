"""Keeps a copy of a set of Kubernetes objects, by list and watch.

Theory of operation
-------------------
A list gives the whole set and its resourceVersion; a watch from there gives every
change since. A watch that ends, breaks off or falls silent is taken up again from
the last version seen, which loses nothing. Only when the server has forgotten that
version (410) is the set listed anew, and every quarter of an hour to be sure. An
error never changes the copy: it stays what it was, grows older, and its age says so.
These are the guarantees of client-go's reflector, whose waits between attempts are
ours (`backoff`).

Watches are short, 20 to 30 s where client-go's are 5 to 10 minutes. HTTP/1.1 has no
ping, and a proxy or a hung server can hold a connection open in silence; the
server's own end of each watch is the proof that it still speaks. The price is one
small request for each watch and half minute.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from math import inf
from random import Random
from time import monotonic
from typing import Generic, Protocol, TypeVar

from pydantic import ValidationError

from extproc.adapters.backoff import Backoff
from extproc.adapters.kubernetes.cluster import OPENED, Api
from extproc.adapters.kubernetes.errors import Garbled, KubernetesError, Refusal
from extproc.adapters.kubernetes.objects import Json, KubernetesObject
from extproc.adapters.observability.logs import fields

log = logging.getLogger("extproc.kubernetes")

PAGE = 500
WATCH_SECONDS = (20, 30)
# Nothing is lost between lists, says the API; should it be all the same (a store restored
# from a backup, a fault of ours), it is not lost for ever.
RELIST_SECONDS = (600, 900)
# What a watch may take beyond the time it was given, until it counts as silent.
_SILENCE_SECONDS = 5
# A server that ends watches sooner than this, again and again, is not asked without a pause.
_SHORT_WATCH_SECONDS = 1.0

Kept = TypeVar("Kept", bound=KubernetesObject)


@dataclass(frozen=True)
class Resource(Generic[Kept]):
    """A set of objects: a collection's path, and what of it is wanted."""

    plural: str
    path: str
    kept: type[Kept]
    label_selector: str = ""
    field_selector: str = ""

    @property
    def query(self) -> dict[str, object]:
        """The selectors as query parameters."""
        selectors = {"labelSelector": self.label_selector, "fieldSelector": self.field_selector}
        return {name: value for name, value in selectors.items() if value}


class Observer(Protocol):
    """Counts what reflectors do."""

    def listed(self, resource: str, result: str) -> None:
        """A list was answered, or failed."""

    def watched(self, resource: str, result: str) -> None:
        """A watch ended."""


class Reflector(Generic[Kept]):
    """The copy; `run` keeps it, `changed` is called with it whenever it is another one."""

    def __init__(
        self,
        api: Api,
        resource: Resource[Kept],
        changed: Callable[[Mapping[str, Kept]], None],
        observer: Observer,
        rng: Random,
    ) -> None:
        self._api = api
        self._resource = resource
        self._changed = changed
        self._observer = observer
        self._rng = rng
        self._backoff = Backoff(rng)
        self._objects: dict[str, Kept] = {}
        self._version: str | None = None
        self._relist_at = 0.0
        self._trouble: str | None = None
        self.attempted = asyncio.Event()
        """Set once a first list has been answered or has failed."""
        self.synced = False
        """Whether the whole set was ever seen."""
        self.confirmed_at = monotonic()
        """When the server last said something; at first, when we began to ask."""

    @property
    def trouble(self) -> str | None:
        """Why the copy grows old; None while it does not."""
        return self._trouble

    async def run(self) -> None:
        """Follows the set for ever, whatever happens."""
        while True:
            try:
                await self._follow()
            except Exception as error:
                if not isinstance(error, KubernetesError):
                    log.exception("unexpected", extra=self._fields())
                    self._version = None
                self._complain(error)
                self.attempted.set()
                await asyncio.sleep(self._backoff.next())

    async def _follow(self) -> None:
        """Lists if need be, and watches once."""
        listed = self._version is None or monotonic() >= self._relist_at
        if listed:
            await self._list()
        began = monotonic()
        try:
            await self._watch()
        except KubernetesError as error:
            self._observer.watched(self._resource.plural, _result(error))
            if not _is_worth_another_watch(error):
                self._version = None
            # The version of a list just made cannot be too old: that server is not well.
            if _is_expired(error) and not listed:
                return
            raise
        self._observer.watched(self._resource.plural, "ended")
        if monotonic() - began < _SHORT_WATCH_SECONDS:
            await asyncio.sleep(self._backoff.next())

    async def _list(self) -> None:
        try:
            version, objects = await self._whole()
        except KubernetesError as error:
            self._observer.listed(self._resource.plural, _result(error))
            raise
        self._observer.listed(self._resource.plural, "ok")
        self._relist_at = monotonic() + self._rng.uniform(*RELIST_SECONDS)
        self._version = version
        self._objects = objects
        self.synced = True
        self._confirm()
        self._changed(self._objects)
        self.attempted.set()

    async def _whole(self) -> tuple[str, dict[str, Kept]]:
        """All pages of a list, which are one snapshot; without pages if it expires meanwhile."""
        try:
            return await self._pages(PAGE)
        except Refusal as error:
            if not _is_expired(error):
                raise
            return await self._pages(None)

    async def _pages(self, limit: int | None) -> tuple[str, dict[str, Kept]]:
        objects: dict[str, Kept] = {}
        query = self._resource.query | ({} if limit is None else {"limit": limit})
        while True:
            page = await self._api.get(self._resource.path, query)
            for item in page.get("items") or ():
                kept = self._keep(item)
                objects[kept.metadata.name] = kept
            metadata = page.get("metadata")
            if not isinstance(metadata, dict) or not metadata.get("resourceVersion"):
                raise Garbled("a list without a resourceVersion")
            if not metadata.get("continue"):
                return str(metadata["resourceVersion"]), objects
            query["continue"] = metadata["continue"]

    async def _watch(self) -> None:
        seconds = self._rng.randint(*WATCH_SECONDS)
        query = {
            **self._resource.query,
            "resourceVersion": self._version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": seconds,
        }
        opened = inf
        events = self._api.watch(self._resource.path, query, seconds + _SILENCE_SECONDS)
        try:
            async with aclosing(events):
                async for event in events:
                    if event is OPENED:
                        opened = monotonic()
                        self._confirm()
                    else:
                        self._take(event)
            self._confirm()
        finally:
            # Not by a list, nor by a watch that breaks off at once: a server at which that
            # happens again and again is asked less and less often.
            if monotonic() - opened >= _SHORT_WATCH_SECONDS:
                self._backoff.reset()

    def _take(self, event: Json) -> None:
        kind, item = event.get("type"), event.get("object")
        if kind == "ERROR":
            # Whatever it is, the watch cannot go on from here.
            self._version = None
            status = item if isinstance(item, dict) else {}
            code = status.get("code")
            raise Refusal(code if isinstance(code, int) else 500, str(status.get("message")))
        if kind not in ("ADDED", "MODIFIED", "DELETED", "BOOKMARK"):
            raise Garbled(f"an event of type {kind!r}")
        version = _version(item)
        if kind == "BOOKMARK":
            self._refuse_the_past(version)
        self._version = version
        self._confirm()
        if kind == "BOOKMARK":
            return
        kept = self._keep(item)
        if kind == "DELETED":
            self._objects.pop(kept.metadata.name, None)
        else:
            self._objects[kept.metadata.name] = kept
        self._changed(self._objects)

    def _refuse_the_past(self, bookmark: str) -> None:
        """A server whose store was restored may count on from an older version than ours.

        A watch from ours would be silent until the server gets there. Not every server
        shows it so; for the others there is RELIST_SECONDS.
        """
        known = self._version or ""
        if bookmark.isdecimal() and known.isdecimal() and int(bookmark) < int(known):
            raise Garbled(f"version {bookmark} after {known}: the server went back in time")

    def _keep(self, item: object) -> Kept:
        try:
            return self._resource.kept.model_validate(item)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"]))
            raise Garbled(f"{self._resource.kept.__name__} {where}: {first['msg']}") from None

    def _confirm(self) -> None:
        self.confirmed_at = monotonic()
        if self._trouble is not None:
            self._trouble = None
            log.info("following again", extra=self._fields())

    def _complain(self, error: Exception) -> None:
        trouble = str(error) or type(error).__name__
        if trouble != self._trouble:
            self._trouble = trouble
            log.warning("what is known stays", extra=self._fields(why=trouble))

    def _fields(self, **more: object) -> Mapping[str, object]:
        resource = self._resource
        selector = resource.label_selector or resource.field_selector
        return fields(path=resource.path, selector=selector, **more)


def _version(item: object) -> str:
    metadata = item.get("metadata") if isinstance(item, dict) else None
    version = metadata.get("resourceVersion") if isinstance(metadata, dict) else None
    if not isinstance(version, str) or not version:
        raise Garbled("an event without a resourceVersion")
    return version


def _is_expired(error: KubernetesError) -> bool:
    return isinstance(error, Refusal) and error.code == 410


def _is_worth_another_watch(error: KubernetesError) -> bool:
    """Whether the version we have is still good: not after what only a new list can mend."""
    if isinstance(error, Refusal):
        return error.code in (401, 403, 408, 429) or 500 <= error.code != 504
    return not isinstance(error, Garbled)


def _result(error: KubernetesError) -> str:
    if isinstance(error, Refusal):
        return "expired" if _is_expired(error) else str(error.code)
    return "garbled" if isinstance(error, Garbled) else "unreachable"
