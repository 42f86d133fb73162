"""The roles of the stand-in API server's only user."""

from __future__ import annotations

from collections.abc import Sequence

from extproc.lab.api_server.errors import ApiError, Json, bad_request
from extproc.lab.api_server.resources import Target

USER = "system:serviceaccount:default:stand-in"


class Roles:
    """The rules of Role objects; what no rule allows is forbidden."""

    def __init__(self, roles: Sequence[Json]) -> None:
        self._rules: dict[str, list[Json]] = {}
        for role in roles:
            namespace = role.get("metadata", {}).get("namespace")
            if role.get("kind") != "Role" or not namespace:
                raise bad_request("rbac takes Role objects that have a namespace, or null")
            self._rules.setdefault(namespace, []).extend(role["rules"])

    def allow(self, target: Target) -> bool:
        """Return True if a rule allows a request. No Role covers all namespaces at once."""
        return any(_allows(rule, target) for rule in self._rules.get(target.namespace, ()))


def _allows(rule: Json, target: Target) -> bool:
    """Return True if a rule allows a request.

    A rule with resource names allows a list or a watch only with a field selector for one of them.
    """
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
    """Return status 403 with a real server's message."""
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
