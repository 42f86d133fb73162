"""The verbs of the stand-in API server, except watch."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from extproc.lab.api_server.errors import ApiError, Json, bad_request
from extproc.lab.api_server.objects import Scope, Stored
from extproc.lab.api_server.resources import PODS, SERVICES, Resource, Target
from extproc.lab.api_server.selectors import field_selector, label_selector
from extproc.lab.api_server.store import Store

_MERGE_PATCH = "application/merge-patch+json"
_STRATEGIC_MERGE_PATCH = "application/strategic-merge-patch+json"


@dataclass(frozen=True)
class ApiRequest:
    """A request for a resource."""

    target: Target
    query: Mapping[str, str]
    content_type: str
    body: bytes


def answer(store: Store, request: ApiRequest) -> tuple[int, Json]:
    """Execute a request and return the status and the document. Raises ApiError."""
    target = request.target
    match target.verb:
        case "get":
            return 200, store.get(target.resource, target.namespace, target.name).body
        case "list":
            return 200, _list(store, request)
        case "create":
            return 201, store.create(target.resource, _own(target, _parsed(request))).body
        case "update":
            return 200, _update(store, target, _own(target, _parsed(request))).body
        case "patch":
            return 200, _patch(store, request).body
        case "delete":
            return 200, _delete(store, target)
    raise AssertionError(target.verb)


def scope_of(request: ApiRequest) -> Scope:
    """Return the scope of a list or a watch. Raises ApiError 400."""
    return Scope(
        request.target.resource,
        request.target.namespace,
        label_selector(request.query.get("labelSelector", "")),
        field_selector(request.query.get("fieldSelector", "")),
    )


def number(query: Mapping[str, str], name: str) -> int:
    """Return a numeric parameter, 0 without one. Raises ApiError 400."""
    text = query.get(name) or "0"
    if not text.isdecimal():
        raise bad_request(f'Invalid value: "{text}": {name} must be a number')
    return int(text)


def _list(store: Store, request: ApiRequest) -> Json:
    scope, token = scope_of(request), request.query.get("continue", "")
    version = number(request.query, "resourceVersion")
    if token and version:
        raise bad_request("specifying resource version is not allowed when using continue")
    if version > store.version:
        raise _too_large(version, store.version)
    page = store.page(scope, number(request.query, "limit"), token)
    metadata: Json = {"resourceVersion": str(page.version)}
    if page.token:
        metadata["continue"] = page.token
        # As on a real server, the number is unknown with a selector.
        if not scope.labels and not scope.fields:
            metadata["remainingItemCount"] = page.remaining
    return {
        "kind": f"{scope.resource.kind}List",
        "apiVersion": scope.resource.api_version,
        "metadata": metadata,
        "items": [_item(stored) for stored in page.items],
    }


def _item(stored: Stored) -> Json:
    """Return an object for a list; only custom resources keep their kind and version there."""
    if stored.resource.custom:
        return stored.body
    return {k: v for k, v in stored.body.items() if k not in ("kind", "apiVersion")}


def _update(store: Store, target: Target, body: Json) -> Stored:
    if target.resource.custom and not body["metadata"].get("resourceVersion"):
        message = (
            f'{target.resource.qualified} "{target.name}" is invalid: metadata.resourceVersion: '
            "Invalid value: 0: must be specified for an update"
        )
        raise ApiError(422, "Invalid", message)
    return store.replace(target.resource, body)


def _patch(store: Store, request: ApiRequest) -> Stored:
    target = request.target
    takes = (_MERGE_PATCH,) if target.resource.custom else (_MERGE_PATCH, _STRATEGIC_MERGE_PATCH)
    patch = _parsed(request, takes)
    before = store.get(target.resource, target.namespace, target.name)
    patched = _merged(before.body, patch)
    return store.replace(target.resource, _own(target, patched))


def _merged(value: Any, patch: Any) -> Any:
    """Apply a merge patch (RFC 7386).

    A strategic merge patch is handled as a merge patch: its lists replace, and its directives are
    dropped.
    """
    if not isinstance(patch, dict):
        return patch
    merged = dict(value) if isinstance(value, dict) else {}
    for key, change in patch.items():
        if change is None or key.startswith("$"):
            merged.pop(key, None)
        else:
            merged[key] = _merged(merged.get(key), change)
    return merged


def _delete(store: Store, target: Target) -> Json:
    gone = store.delete(target.resource, target.namespace, target.name)
    if target.resource in (PODS, SERVICES):
        return gone.body
    details = {
        "name": target.name,
        "group": target.resource.group,
        "kind": target.resource.plural,
        "uid": gone.body["metadata"]["uid"],
    }
    status = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}
    return {**status, "details": details}


def _parsed(request: ApiRequest, takes: Sequence[str] = ("application/json",)) -> Json:
    if request.content_type not in takes:
        message = f"the body of the request was in an unknown format - accepted: {', '.join(takes)}"
        raise ApiError(415, "UnsupportedMediaType", message)
    try:
        parsed = json.loads(request.body)
    except ValueError as error:
        raise bad_request(f"the object provided is not JSON: {error}") from None
    if not isinstance(parsed, dict):
        raise bad_request("the object provided is not an object")
    return parsed


def _own(target: Target, body: Json) -> Json:
    """Return an object with the namespace and the type of its path. Raises ApiError 400."""
    metadata = dict(body.get("metadata") or {})
    if (metadata.get("namespace") or target.namespace) != target.namespace:
        raise bad_request(
            "the namespace of the provided object does not match the namespace sent on the request"
        )
    if target.name and (given := metadata.get("name")) != target.name:
        raise bad_request(
            f"the name of the object ({given}) does not match the name on the URL ({target.name})"
        )
    if target.namespace:
        metadata["namespace"] = target.namespace
    return {**body, **type_of(target.resource, body), "metadata": metadata}


def type_of(resource: Resource, body: Json) -> Json:
    """Return the kind and version of an object, which may omit them. Raises ApiError 400."""
    given = {key: body.get(key) or known for key, known in resource.type.items()}
    if given != resource.type:
        raise bad_request(f"{given} cannot be handled as {resource.type}")
    return given


def _too_large(version: int, current: int) -> ApiError:
    """Return status 504: the client has seen a later version than the server, and must wait."""
    message = f"Timeout: Too large resource version: {version}, current: {current}"
    causes = [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}]
    return ApiError(504, "Timeout", message, {"causes": causes, "retryAfterSeconds": 1})
