"""Objects of the stand-in API server, and which of them a request is about."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property

from extproc.lab.api_server.errors import Json
from extproc.lab.api_server.resources import Resource
from extproc.lab.api_server.selectors import Selector, matches


@dataclass(frozen=True, eq=False)
class Stored:
    """One state of an object. Never changed, so that lists and watches can share it."""

    resource: Resource
    body: Json

    @cached_property
    def key(self) -> str:
        """Unique among a resource's objects; orders lists."""
        return key_of(self.namespace, self.body["metadata"]["name"])

    @cached_property
    def namespace(self) -> str:
        """Empty for a resource that has none."""
        namespace: str = self.body["metadata"].get("namespace", "")
        return namespace

    @cached_property
    def text(self) -> bytes:
        """As JSON; made once, however many watches want it."""
        text = json.dumps(self.body, separators=(",", ":"), ensure_ascii=False)
        return text.encode(errors="replace")

    def at(self, version: int) -> Stored:
        """The same state with another version."""
        metadata = {**self.body["metadata"], "resourceVersion": str(version)}
        return Stored(self.resource, {**self.body, "metadata": metadata})


def key_of(namespace: str, name: str) -> str:
    """The key of an object; they sort as etcd's do."""
    return f"{namespace}/{name}"


@dataclass(frozen=True)
class Scope:
    """Which objects a list or a watch is about."""

    resource: Resource
    namespace: str = ""
    """Empty: all."""

    labels: Selector = ()
    fields: Selector = ()

    def covers(self, stored: Stored | None) -> bool:
        """Whether an object is one of them; None is not."""
        if stored is None or stored.resource is not self.resource:
            return False
        if self.namespace and stored.namespace != self.namespace:
            return False
        metadata = stored.body["metadata"]
        fields = {"metadata.name": metadata["name"], "metadata.namespace": stored.namespace}
        return matches(self.fields, fields) and matches(self.labels, metadata.get("labels") or {})
