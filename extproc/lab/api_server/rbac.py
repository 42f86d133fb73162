"""Roles of the stand-in API server's one user."""

from __future__ import annotations

from collections.abc import Sequence

from extproc.lab.api_server.errors import ApiError, Json, bad_request
from extproc.lab.api_server.resources import Target

USER = "system:serviceaccount:default:stand-in"


class Roles:
    """Rules in namespaces, as Role objects state them; whatever none allows is forbidden."""

    def __init__(self, roles: Sequence[Json]) -> None:
        self._rules: dict[str, list[Json]] = {}
        for role in roles:
            namespace = role.get("metadata", {}).get("namespace")
            if role.get("kind") != "Role" or not namespace:
                raise bad_request("rbac takes Role objects that have a namespace, or null")
            self._rules.setdefault(namespace, []).extend(role["rules"])

    def allow(self, target: Target) -> bool:
        """Whether a rule allows a request. None does for all namespaces at once."""
        return any(_allows(rule, target) for rule in self._rules.get(target.namespace, ()))


def _allows(rule: Json, target: Target) -> bool:
    """A rule for names does not allow a list or a watch, unless it is of one such name."""
    names = rule.get("resourceNames")
    return (
        _has(rule.get("verbs", ()), target.verb)
        and _has(rule.get("apiGroups", ()), target.resource.group)
        and _has(rule.get("resources", ()), target.resource.plural)
        and (not names or target.name in names)
    )


def _has(values: Sequence[str], value: str) -> bool:
    return value in values or "*" in values


def forbidden(target: Target) -> ApiError:
    """403, as a real server words it."""
    resource = target.resource
    where = f'in the namespace "{target.namespace}"' if target.namespace else "at the cluster scope"
    what = f'{resource.qualified} "{target.name}"' if target.name else resource.qualified
    message = (
        f'{what} is forbidden: User "{USER}" cannot {target.verb} resource "{resource.plural}" '
        f'in API group "{resource.group}" {where}'
    )
    details = {"group": resource.group, "kind": resource.plural}
    if target.name:
        details["name"] = target.name
    return ApiError(403, "Forbidden", message, details)
