"""The watches of the stand-in API server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from enum import Enum

from extproc.lab.api_server.errors import ApiError, Json
from extproc.lab.api_server.faults import Faults
from extproc.lab.api_server.store import Change, Store
from extproc.lab.api_server.verbs import ApiRequest, number, scope_of

_DEFAULT_SECONDS = 1800

_BOOKMARK_SECONDS = 2.0
"""Seconds between the last bookmark and the end; a tenth of the duration if that is shorter."""

_INITIAL_EVENTS_END = {"k8s.io/initial-events-end": "true"}


class Ending(Enum):
    """The kinds of end that tests can request for a watch."""

    NORMAL = 1
    ABORT = 2


class OpenWatch:
    """An open watch."""

    def __init__(self, store: Store, request: ApiRequest) -> None:
        """Open the watch. Raises ApiError 400, 410 and 422."""
        self._store = store
        self._scope = scope_of(request)
        self._bookmarks = request.query.get("allowWatchBookmarks") in ("1", "true")
        self._seconds = number(request.query, "timeoutSeconds") or _DEFAULT_SECONDS
        self._wake = asyncio.Event()
        version = number(request.query, "resourceVersion")
        initial = _initial_events(request)
        from_now = bool(initial) or not version
        self._cursor = store.watch(self._scope, store.version if from_now else version)
        self._initial = b""
        if from_now and initial is not False:
            self._initial = b"".join(_line(Change("ADDED", one)) for one in store.list(self._scope))
        if initial and self._bookmarks:
            self._initial += self._bookmark(_INITIAL_EVENTS_END)
        # Changes since that version are sent at once.
        self._wake.set()
        self.silent = False
        self.ending: Ending | None = None

    def wake(self) -> None:
        """Make the watch send new changes."""
        self._wake.set()

    def end(self, ending: Ending) -> None:
        """Make the watch end, once the server is not frozen."""
        self.ending = ending
        self.wake()

    async def chunks(self, faults: Faults) -> AsyncIterator[bytes]:
        """Yield lines until the watch ends."""
        loop = asyncio.get_running_loop()
        end = loop.time() + self._seconds
        bookmark = end - min(_BOOKMARK_SECONDS, self._seconds / 10)
        timers = [loop.call_at(when, self.wake) for when in (bookmark, end)]
        lines = self._initial
        try:
            await self._wait_for_faults(faults)
            while not self.ending:
                if lines:
                    yield faults.spoiled(lines)
                if loop.time() >= end:
                    return
                if not lines:
                    await self._wake.wait()
                await self._wait_for_faults(faults)
                self._wake.clear()
                lines = b"".join(map(_line, self._cursor.changes()))
                if self._bookmarks and loop.time() >= bookmark:
                    self._bookmarks = False
                    lines += self._bookmark()
        finally:
            for timer in timers:
                timer.cancel()

    async def _wait_for_faults(self, faults: Faults) -> None:
        """Wait while the server is frozen, and without end if the watch is silent."""
        await faults.thawed.wait()
        if self.silent:
            await asyncio.Event().wait()

    def _bookmark(self, annotations: Json | None = None) -> bytes:
        metadata: Json = {"resourceVersion": str(self._store.version)}
        if annotations:
            metadata["annotations"] = annotations
        bookmark = {**self._scope.resource.type, "metadata": metadata}
        event = {"type": "BOOKMARK", "object": bookmark}
        return json.dumps(event, separators=(",", ":")).encode() + b"\n"


def error_line(error: ApiError) -> bytes:
    """Return the ERROR event of a watch that fails after status 200."""
    event = {"type": "ERROR", "object": error.document()}
    return json.dumps(event, separators=(",", ":")).encode() + b"\n"


def _line(change: Change) -> bytes:
    return b'{"type":"%s","object":%s}\n' % (change.type.encode(), change.stored.text)


def _initial_events(request: ApiRequest) -> bool | None:
    """Return `sendInitialEvents`; None if the version decides."""
    given = request.query.get("sendInitialEvents")
    if given is None:
        return None
    if request.query.get("resourceVersionMatch") != "NotOlderThan":
        message = (
            'ListOptions.meta.k8s.io "" is invalid: resourceVersionMatch: Forbidden: '
            "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan"
        )
        raise ApiError(422, "Invalid", message)
    return given in ("1", "true")
