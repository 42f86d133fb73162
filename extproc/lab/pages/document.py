"""The reference of the models document: its keys, their values and defaults."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel

from extproc.adapters.configuration.document import MAX_BYTES
from extproc.core import schema as spec
from extproc.core.schema import ModelsSpec
from extproc.lab.pages.docstrings import documented, summary
from extproc.lab.pages.lines import codes, heading, paragraph, table

Schema = dict[str, Any]


def models_document() -> Iterator[str]:
    """Return the lines of the section."""
    yield from heading("The models document")
    yield f"YAML of at most {MAX_BYTES:,} bytes. Unknown keys are errors."
    schema = ModelsSpec.model_json_schema()
    for path, model, properties in _mappings("", "ModelsSpec", schema, schema["$defs"]):
        if path:
            yield from heading(f"`{path}`", level=3)
            yield from paragraph(summary(model))
        meanings = documented(model, model.model_fields).values()
        rows = [
            (f"`{key}`", values(one), default(one), meaning)
            for meaning, (key, one) in zip(meanings, properties.items(), strict=True)
        ]
        yield from table(("key", "value", "default", "meaning"), rows)


def _mappings(
    path: str, name: str, schema: Schema, others: Schema
) -> Iterator[tuple[str, type[BaseModel], Schema]]:
    """Return each mapping of the document: its path, its class, the schemas of its keys."""
    yield path, getattr(spec, name), schema["properties"]
    for key, one in schema["properties"].items():
        reference = re.search(r"#/\$defs/(\w+)", str(one))
        if reference:
            below = f"{path}.{key}".lstrip(".") + ("[]" if "items" in one else "")
            yield from _mappings(below, reference[1], others[reference[1]], others)


def values(schema: Schema) -> str:
    """Describe the values of a key."""
    if "$ref" in schema:
        return "mapping, below"
    if "format" in schema:
        return str(schema["format"])
    if "anyOf" in schema:
        return " or ".join(values(one) for one in schema["anyOf"] if one != {"type": "null"})
    if "enum" in schema:
        return codes(schema["enum"])
    match schema["type"]:
        case "boolean":
            return "`true` or `false`"
        case "number":
            return f"number from {schema['minimum']:,} to {schema['maximum']:,}"
        case "array":
            return f"list of: {values(schema['items'])}"
        case "integer":
            return f"whole number from {schema['minimum']:,} to {schema['maximum']:,}"
        case "string":
            return f"text of {schema['minLength']:,} to {schema['maxLength']:,} characters"
        case kind:
            raise TypeError(f"the reference cannot describe {kind!r}: add it to values()")


def default(schema: Schema) -> str:
    """Describe the default of a key."""
    if "default" not in schema:
        return "required"
    value = schema["default"]
    if isinstance(value, dict):
        return "defaults below"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    return "none" if value in (None, (), [], "") else f"`{value}`"
