"""Reads the events of a watch."""

from __future__ import annotations

from math import inf
from typing import Any, NamedTuple

from extproc.adapters.kubernetes.errors import (
    ApiStatusError,
    MalformedResponse,
    Unreachable,
    retry_after,
)
from extproc.adapters.kubernetes.objects import Json

BOOKMARK_SECONDS = 150.0
"""Longest time without an event after a bookmark: two and a half times that of Kubernetes."""


class WatchEvent(NamedTuple):
    """A change of one object, or a BOOKMARK, which has only a version."""

    kind: str
    """ADDED, MODIFIED, DELETED or BOOKMARK."""
    version: str
    item: Any


class BookmarkWatchdog:
    """Notices a watch that became silent although the connection still responds to PINGs.

    A reverse proxy responds to PINGs for an API server that hangs. Kubernetes sends each watch a
    bookmark every minute, but the API does not promise that. So the first one is not expected.
    """

    def __init__(self) -> None:
        self._deadline = inf

    def received(self, kind: str, now: float) -> None:
        """Record an event."""
        if kind == "BOOKMARK" or self._deadline < inf:
            self._deadline = now + BOOKMARK_SECONDS

    def check(self, now: float) -> None:
        """Raise Unreachable if a bookmark is overdue."""
        if now > self._deadline:
            raise Unreachable(f"no bookmark in {BOOKMARK_SECONDS:g} s")


def read_event(event: Json) -> WatchEvent:
    """Return an event. Raises ApiStatusError for one of type ERROR, else MalformedResponse."""
    kind, item = event.get("type"), event.get("object")
    if kind == "ERROR":
        status = item if isinstance(item, dict) else {}
        code = status.get("code")
        known = code if isinstance(code, int) else 500
        raise ApiStatusError(known, str(status.get("message")), retry_after(status))
    if kind not in ("ADDED", "MODIFIED", "DELETED", "BOOKMARK"):
        raise MalformedResponse(f"the watch sent an event of unknown type {kind!r}")
    return WatchEvent(kind, _version(item), item)


def check_order(known: str, bookmark: str) -> None:
    """Raise MalformedResponse if a bookmark is older than the last known version.

    A server whose store was restored from a backup counts on from an older version. A watch from
    the known version would be silent until the server reaches it. Servers that send no such
    bookmark are covered by reflector.RELIST_SECONDS.
    """
    if bookmark.isdecimal() and known.isdecimal() and int(bookmark) < int(known):
        raise MalformedResponse(f"the server's version went back from {known} to {bookmark}")


def _version(item: object) -> str:
    metadata = item.get("metadata") if isinstance(item, dict) else None
    version = metadata.get("resourceVersion") if isinstance(metadata, dict) else None
    if not isinstance(version, str) or not version:
        raise MalformedResponse("the watch sent an event without a resourceVersion")
    return version
