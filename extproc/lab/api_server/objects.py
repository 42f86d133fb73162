"""Stored objects of the stand-in API server, and the scope of a request."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property

from extproc.lab.api_server.errors import Json
from extproc.lab.api_server.resources import Resource
from extproc.lab.api_server.selectors import Selector, matches


@dataclass(frozen=True, eq=False)
class Stored:
    """One state of an object. It is immutable, so lists and watches can share it."""

    resource: Resource
    body: Json

    @cached_property
    def key(self) -> str:
        """The key of the object, unique in its resource; lists are sorted by it."""
        return key_of(self.namespace, self.body["metadata"]["name"])

    @cached_property
    def namespace(self) -> str:
        """The namespace; empty for a cluster-scoped object."""
        namespace: str = self.body["metadata"].get("namespace", "")
        return namespace

    @cached_property
    def text(self) -> bytes:
        """The JSON of the object, encoded once for all watches."""
        return encoded(self.body)

    def at(self, version: int) -> Stored:
        """Return the same state with another version."""
        metadata = {**self.body["metadata"], "resourceVersion": str(version)}
        return Stored(self.resource, {**self.body, "metadata": metadata})


def encoded(body: Json) -> bytes:
    """Return JSON as a real server writes it: Go escapes the characters that have a use in HTML."""
    text = json.dumps(body, separators=(",", ":"), ensure_ascii=False).translate(_ESCAPES)
    return text.encode(errors="replace")


_ESCAPES = {ord(one): f"\\u{ord(one):04x}" for one in "<>&\u2028\u2029"}


def key_of(namespace: str, name: str) -> str:
    """Return the key of an object; keys sort as in etcd."""
    return f"{namespace}/{name}"


@dataclass(frozen=True)
class Scope:
    """The objects that a list or a watch selects."""

    resource: Resource
    namespace: str = ""
    """The namespace; empty for all namespaces."""

    labels: Selector = ()
    fields: Selector = ()

    def covers(self, stored: Stored | None) -> bool:
        """Return True if an object is in the scope; False for None."""
        if stored is None or stored.resource is not self.resource:
            return False
        if self.namespace and stored.namespace != self.namespace:
            return False
        metadata = stored.body["metadata"]
        fields = {"metadata.name": metadata["name"], "metadata.namespace": stored.namespace}
        return matches(self.fields, fields) and matches(self.labels, metadata.get("labels") or {})
