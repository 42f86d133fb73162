"""The objects of the stand-in API server and the log of their changes, without I/O.

Each write has a new version, greater than all earlier ones. A list shows one version. A watch
resumes from a version, if the log still contains it.
"""

from __future__ import annotations

import base64
import json
import random
import time
import uuid
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from extproc.lab.api_server.errors import ApiError, Json, bad_request, expired
from extproc.lab.api_server.objects import Scope, Stored, key_of
from extproc.lab.api_server.resources import NAMESPACES, RESOURCES, Resource
from extproc.lab.api_server.validation import validate

HISTORY = 50_000
"""Events that the log keeps at least; older versions expire without a compaction."""

_SUFFIX_LETTERS = "bcdfghjklmnpqrstvwxz2456789"
"""Letters of generated names."""

_CONFLICT = (
    "Operation cannot be fulfilled on {}: the object has been modified; "
    "please apply your changes to the latest version and try again"
)


@dataclass(eq=False)
class Event:
    """One write. It refers to the next one, so a watch keeps its place if the log is shortened."""

    version: int
    before: Stored | None = None
    after: Stored | None = None
    next: Event | None = None

    @cached_property
    def last_state(self) -> Stored:
        """The previous state with the version of this event, for a DELETED event."""
        assert self.before is not None
        return self.before.at(self.version)


@dataclass(frozen=True)
class Change:
    """An event of a watch, whose scope contains the object before the write, after it, or both."""

    type: Literal["ADDED", "MODIFIED", "DELETED"]
    stored: Stored


@dataclass(frozen=True)
class Page:
    """A page of a list."""

    items: list[Stored]
    version: int
    token: str
    """Token of the next page; empty for the last page."""

    remaining: int


class Cursor:
    """The position of a watch in the log."""

    def __init__(self, event: Event, version: int, scope: Scope) -> None:
        self._event = event
        self._version = version
        self._scope = scope

    def changes(self) -> list[Change]:
        """Return the changes in the scope since the last call."""
        found = []
        while (event := self._event.next) is not None:
            self._event = event
            if event.version > self._version and (change := self._change(event)):
                found.append(change)
        return found

    def _change(self, event: Event) -> Change | None:
        known = self._scope.covers(event.before)
        if event.after is not None and self._scope.covers(event.after):
            return Change("MODIFIED" if known else "ADDED", event.after)
        return Change("DELETED", event.last_state) if known else None


class Store:
    """All objects of all resources."""

    def __init__(self, changed: Callable[[], None] = lambda: None) -> None:
        self._changed = changed
        self._objects: dict[Resource, dict[str, Stored]] = {each: {} for each in RESOURCES}
        # Versions start at 1, because 0 means any version.
        self._log = [Event(1)]

    @property
    def version(self) -> int:
        """Version of the last write."""
        return self._log[-1].version

    def get(self, resource: Resource, namespace: str, name: str) -> Stored:
        """Return one object. Raises ApiError 404."""
        stored = self._objects[resource].get(key_of(namespace, name))
        if stored is None:
            raise _about(resource, name, 404, "NotFound", "{} not found")
        return stored

    def create(self, resource: Resource, body: Json) -> Stored:
        """Add an object. Raises ApiError 400, 409 and 422."""
        metadata = dict(body.get("metadata") or {})
        if metadata.get("resourceVersion"):
            raise bad_request("resourceVersion should not be set on objects to be created")
        if not metadata.get("name") and (prefix := metadata.get("generateName")):
            metadata["name"] = prefix + "".join(random.choices(_SUFFIX_LETTERS, k=5))
        metadata["uid"] = str(uuid.uuid4())
        metadata["creationTimestamp"] = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        body = {**body, "metadata": metadata}
        validate(resource, body)
        stored = Stored(resource, body)
        if stored.key in self._objects[resource]:
            raise _about(resource, metadata["name"], 409, "AlreadyExists", "{} already exists")
        if stored.namespace:
            self._ensure_namespace(stored.namespace)
        return self._write(None, stored)

    def replace(self, resource: Resource, body: Json) -> Stored:
        """Replace the state of an object. Raises ApiError 404, 409 and 422.

        As on a real server, an equal state changes nothing.
        """
        metadata = dict(body.get("metadata") or {})
        before = self.get(resource, metadata.get("namespace", ""), metadata.get("name", ""))
        known = before.body["metadata"]
        if metadata.get("resourceVersion", known["resourceVersion"]) != known["resourceVersion"]:
            raise _about(resource, known["name"], 409, "Conflict", _CONFLICT)
        for field in ("uid", "creationTimestamp", "resourceVersion"):
            metadata[field] = known[field]
        body = {**body, "metadata": metadata}
        validate(resource, body)
        return before if body == before.body else self._write(before, Stored(resource, body))

    def apply(self, resource: Resource, body: Json) -> Stored:
        """Create or replace an object of any version."""
        metadata = {k: v for k, v in body["metadata"].items() if k != "resourceVersion"}
        key = key_of(metadata.get("namespace", ""), metadata.get("name", ""))
        write = self.replace if key in self._objects[resource] else self.create
        return write(resource, {**body, "metadata": metadata})

    def delete(self, resource: Resource, namespace: str, name: str) -> Stored:
        """Remove an object and return its last state. Raises ApiError 404."""
        return self._write(self.get(resource, namespace, name), None)

    def list(self, scope: Scope) -> list[Stored]:
        """Return the objects in a scope, sorted by key."""
        return _in_order(scope, self._objects[scope.resource])

    def page(self, scope: Scope, limit: int = 0, token: str = "") -> Page:
        """Return a page of a list: `limit` objects (0 for all) from the position of `token` on.

        All pages show the version of the first one. Raises ApiError 410.
        """
        version, start = _parsed(token) if token else (self.version, "")
        objects = self._objects_at(scope.resource, version)
        left = [stored for stored in _in_order(scope, objects) if stored.key > start]
        items = left[:limit] if limit else left
        remaining = len(left) - len(items)
        return Page(items, version, _token(version, items) if remaining else "", remaining)

    def watch(self, scope: Scope, version: int) -> Cursor:
        """Return a cursor for the changes after a version. Raises ApiError 410."""
        if version < (oldest := self._log[0].version):
            raise expired(f"too old resource version: {version} ({oldest})")
        index = bisect_right(self._log, version, key=lambda event: event.version)
        return Cursor(self._log[index - 1], version, scope)

    def compact(self) -> None:
        """Drop all versions except the current one."""
        del self._log[:-1]

    def _ensure_namespace(self, name: str) -> None:
        """Create a namespace for its first object, because kubectl checks that it exists."""
        if key_of("", name) not in self._objects[NAMESPACES]:
            self.create(NAMESPACES, {**NAMESPACES.type, "metadata": {"name": name}})

    def _objects_at(self, resource: Resource, version: int) -> dict[str, Stored]:
        """Return the objects of a version, by undoing the log from its end."""
        if version < self._log[0].version:
            raise expired(
                "The provided continue parameter is too old to display a consistent list result. "
                "You must start a new list without the continue parameter."
            )
        objects = dict(self._objects[resource])
        for event in reversed(self._log):
            if event.version <= version:
                break
            if event.after is not None and event.after.resource is resource:
                objects.pop(event.after.key)
            if event.before is not None and event.before.resource is resource:
                objects[event.before.key] = event.before
        return objects

    def _write(self, before: Stored | None, after: Stored | None) -> Stored:
        event = Event(self.version + 1, before)
        if before is not None:
            del self._objects[before.resource][before.key]
        if after is not None:
            event.after = after.at(event.version)
            self._objects[after.resource][after.key] = event.after
        self._log[-1].next = event
        self._log.append(event)
        if len(self._log) > 2 * HISTORY:
            del self._log[:HISTORY]
        self._changed()
        return event.after or event.last_state


def _in_order(scope: Scope, objects: dict[str, Stored]) -> list[Stored]:
    return sorted(filter(scope.covers, objects.values()), key=lambda stored: stored.key)


def _token(version: int, items: list[Stored]) -> str:
    text = json.dumps({"v": "meta.k8s.io/v1", "rv": version, "start": items[-1].key})
    return base64.urlsafe_b64encode(text.encode()).decode()


def _parsed(token: str) -> tuple[int, str]:
    try:
        content = json.loads(base64.urlsafe_b64decode(token))
        return int(content["rv"]), str(content["start"])
    except (ValueError, KeyError, TypeError):
        raise bad_request("continue key is not valid: it was not issued by this server") from None


def _about(resource: Resource, name: str, code: int, reason: str, message: str) -> ApiError:
    """Return an error about an object, whose name replaces {} in the message."""
    details = {"name": name, "group": resource.group, "kind": resource.plural}
    return ApiError(code, reason, message.format(f'{resource.qualified} "{name}"'), details)
