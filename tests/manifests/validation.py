"""Validation of objects against Kubernetes' schemas, and against those of custom resources."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate  # type: ignore[import-untyped]
from kubernetes_validate import utils

from tests.manifests.builds import Object

SCHEMAS = Path(__file__).parent / "schemas"
OLDEST = "1.30"
NEWEST = kubernetes_validate.latest_version()
# Otherwise the library reads thousands of definitions again for each object.
utils.schema_contents = cache(utils.schema_contents)
CUSTOM = {path.stem for path in SCHEMAS.glob("*.json")}


@cache
def schema(kind: str) -> dict[str, Any]:
    """Return the schema of a custom resource."""
    found: dict[str, Any] = json.loads((SCHEMAS / f"{kind}.json").read_text())
    return found


def validate(thing: Object, version: str = NEWEST) -> None:
    """Raise an error if an object has an unknown field or lacks a required one."""
    if thing["kind"] in CUSTOM:
        jsonschema.Draft202012Validator(schema(thing["kind"])).validate(thing)
    else:
        kubernetes_validate.validate(thing, version, strict=True)
