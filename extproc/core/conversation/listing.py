"""The responses to `GET /v1/models` and `GET /v1/models/{id}`, in OpenAI's and Anthropic's shape.

Engines list the longest context (`max_model_len`), and clients read it. The sidecar repeats it if
it has read an engine's list.
"""

from __future__ import annotations

import json

from extproc.core.fleet.context_lengths import ContextLengths
from extproc.core.request.refusals import ModelNotFound
from extproc.core.routing.catalog import Catalog

_Entry = dict[str, object]

_OWNER = "extproc"
_CREATED = 0
_CREATED_AT = "1970-01-01T00:00:00Z"
"""Both APIs require a date, and models have none here."""


class Listing:
    """The models of one catalog, as a list or one by one."""

    def __init__(self, catalog: Catalog, lengths: ContextLengths, *, anthropic: bool) -> None:
        self._catalog = catalog
        self._lengths = lengths
        self._anthropic = anthropic

    def all(self) -> bytes:
        """Return the list of all models, aliases, adapters and splits."""
        entries = [self._entry(name) for name in self._catalog.names_in_order()]
        if not self._anthropic:
            return _encoded({"object": "list", "data": entries})
        first, last = (entries[0]["id"], entries[-1]["id"]) if entries else (None, None)
        return _encoded({"data": entries, "has_more": False, "first_id": first, "last_id": last})

    def one(self, name: str) -> bytes:
        """Return one entry of the list. Raises ModelNotFound."""
        if name not in self._catalog.splits and not self._catalog.names(name):
            raise ModelNotFound(name, self._catalog.known())
        return _encoded(self._entry(name))

    def _entry(self, name: str) -> _Entry:
        if self._anthropic:
            return {"type": "model", "id": name, "display_name": name, "created_at": _CREATED_AT}
        entry: _Entry = {"id": name, "object": "model", "created": _CREATED, "owned_by": _OWNER}
        split = self._catalog.splits.get(name)
        if split is not None:
            return self._with_length(entry, [target.model for target in split.spec.targets])
        model, adapter = self._catalog.resolve(name)
        if adapter:
            entry["parent"] = model.spec.name
        return self._with_length(entry, [name])

    def _with_length(self, entry: _Entry, names: list[str]) -> _Entry:
        """Add the shortest length of these models, if all lengths are known."""
        models = [self._catalog.resolve(name)[0] for name in names]
        lengths = [self._lengths.of(model.snapshot) for model in models]
        known = [length for length in lengths if length is not None]
        if known and len(known) == len(lengths):
            entry["max_model_len"] = min(known)
        return entry


def _encoded(document: _Entry) -> bytes:
    return json.dumps(document).encode()
