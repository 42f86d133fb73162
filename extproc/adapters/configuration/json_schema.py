"""The JSON Schema of the models document, for editors."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel

from extproc.adapters.configuration.docstrings import attribute_docstrings, one_line
from extproc.core import schema as classes
from extproc.core.schema import ModelsSpec

JsonSchema = dict[str, Any]

DIALECT = "https://json-schema.org/draft/2020-12/schema"

_SOURCES = ("endpoints", "service", "inferencePool", "split")
_LINK = re.compile(r"\[([^]]+)\]\([^)]*\)")


def json_schema() -> JsonSchema:
    """Return the schema. It knows keys, types and ranges.

    `extproc check` also finds contradictions between values, such as names that occur twice.
    """
    found = ModelsSpec.model_json_schema()
    mappings: JsonSchema = found["$defs"]
    mappings["ModelsSpec"] = found
    for name, mapping in mappings.items():
        _describe(mapping, getattr(classes, name))
    del mappings["ModelsSpec"]
    mappings["ModelSpec"]["oneOf"] = list(_one_source())
    return {"$schema": DIALECT, **found, "title": "extproc models document"}


def _describe(mapping: JsonSchema, cls: type[BaseModel]) -> None:
    meanings = attribute_docstrings(cls)
    mapping.pop("title", None)
    mapping["description"] = _plain((cls.__doc__ or "").split("\n\n")[0])
    for name, field in cls.model_fields.items():
        key = mapping["properties"][field.alias]
        key.pop("title", None)
        key["description"] = _plain(meanings[name])
        if isinstance(key.get("default"), dict):
            del key["default"]  # the defaults of its keys say the same
        _drop_forms(key)


def _drop_forms(schema: JsonSchema) -> None:
    """Remove `format`, which has texts for the reference instead of JSON Schema's formats."""
    schema.pop("format", None)
    for inner in (schema.get("items"), *schema.get("anyOf", ())):
        if isinstance(inner, dict):
            _drop_forms(inner)


def _one_source() -> Iterator[JsonSchema]:
    """Yield an alternative for each source of endpoints. A null counts as missing."""
    for name in _SOURCES:
        yield {"required": [name], "properties": {name: {"not": {"type": "null"}}}}


def _plain(text: str) -> str:
    """Return a docstring as one line, without links, which lead to headings of the reference."""
    return _LINK.sub(r"\1", one_line(text))
