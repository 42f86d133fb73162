"""The validation of objects, a small part of a real server's."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from typing import Any

from extproc.lab.api_server.errors import ApiError, Json
from extproc.lab.api_server.resources import ENDPOINT_SLICES, Resource

_MAX_ENDPOINTS = 1000
_MAX_ADDRESSES = 100


def validate(resource: Resource, body: Json) -> None:
    """Raise ApiError 422 with all problems of an object.

    Unlike a real server, the stand-in accepts loopback addresses, which tests need.
    """
    faults = list(_faults(resource, body))
    if not faults:
        return
    name = body["metadata"].get("name", "")
    wrong = ", ".join(faults) if len(faults) == 1 else f"[{', '.join(faults)}]"
    details = {
        "name": name,
        "group": resource.group,
        "kind": resource.kind,
        "causes": [{"field": fault.partition(":")[0], "message": fault} for fault in faults],
    }
    message = f'{resource.qualified_kind} "{name}" is invalid: {wrong}'
    raise ApiError(422, "Invalid", message, details)


def _faults(resource: Resource, body: Json) -> Iterator[str]:
    if not body["metadata"].get("name"):
        yield "metadata.name: Required value: name or generateName is required"
    if resource is ENDPOINT_SLICES:
        yield from _slice_faults(body)


def _slice_faults(body: Json) -> Iterator[str]:
    family = body.get("addressType")
    if family not in ("IPv4", "IPv6", "FQDN"):
        yield f'addressType: Unsupported value: "{family}"'
    endpoints = body.get("endpoints") or []
    if len(endpoints) > _MAX_ENDPOINTS:
        yield f"endpoints: Too many: {len(endpoints)}: must have at most {_MAX_ENDPOINTS} items"
    for i, endpoint in enumerate(endpoints):
        addresses = endpoint.get("addresses") or []
        if not addresses:
            yield f"endpoints[{i}].addresses: Required value: must contain at least 1 address"
        if len(addresses) > _MAX_ADDRESSES:
            yield f"endpoints[{i}].addresses: Too many: {len(addresses)}"
        for j, address in enumerate(addresses):
            if not _is_address(family, address):
                field = f"endpoints[{i}].addresses[{j}]"
                yield f'{field}: Invalid value: "{address}": must be a valid {family} address'


def _is_address(family: Any, address: object) -> bool:
    if not isinstance(address, str):
        return False
    try:
        if family == "IPv4":
            ipaddress.IPv4Address(address)
        if family == "IPv6":
            # Python accepts zones, but Kubernetes does not.
            return "%" not in address and bool(ipaddress.IPv6Address(address))
    except ValueError:
        return False
    return bool(address)
