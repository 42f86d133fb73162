"""The discovery documents, from which kubectl learns the resources of the server."""

from __future__ import annotations

from extproc.lab.api_server.errors import Json
from extproc.lab.api_server.resources import RESOURCES

_VERBS = ("create", "delete", "get", "list", "patch", "update", "watch")

_GROUPS = {each.group: each.version for each in RESOURCES if each.group}


def discovery(path: str) -> Json | None:
    """Return the document at a path; None without one."""
    match path.strip("/").split("/"):
        case ["version"]:
            return {"major": "1", "minor": "36", "gitVersion": "v1.36.0", "platform": "stand-in"}
        case ["api"]:
            return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []}
        case ["apis"]:
            groups = [_group(name) for name in _GROUPS]
            return {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}
        case ["apis", name] if name in _GROUPS:
            return {"kind": "APIGroup", "apiVersion": "v1", **_group(name)}
        case ["api", "v1"]:
            return _resources("v1")
        case ["apis", name, version] if _GROUPS.get(name) == version:
            return _resources(f"{name}/{version}")
    return None


def _group(name: str) -> Json:
    version = {"groupVersion": f"{name}/{_GROUPS[name]}", "version": _GROUPS[name]}
    return {"name": name, "versions": [version], "preferredVersion": version}


def _resources(api_version: str) -> Json:
    resources = [
        {
            "name": each.plural,
            "singularName": each.kind.lower(),
            "namespaced": each.namespaced,
            "kind": each.kind,
            "verbs": list(_VERBS),
            "shortNames": list(each.short_names),
        }
        for each in RESOURCES
        if each.api_version == api_version
    ]
    return {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": api_version,
        "resources": resources,
    }
