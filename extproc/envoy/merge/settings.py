"""Settings of the user's routes that the new routes for the same requests must have, too."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import Any

from extproc.envoy.names import Names
from extproc.envoy.nodes import Node
from extproc.envoy.problems import ConfigurationError

FILTERS = "typed_per_filter_config"

OF_ACTION = ("rate_limits", "include_vh_rate_limits", "cors", "request_mirror_policies")
"""Keys below `route`. All others are keys of the route itself."""

_OF_ROUTE = (
    "request_headers_to_add",
    "request_headers_to_remove",
    "response_headers_to_add",
    "response_headers_to_remove",
    "metadata",
)
_OF_WEIGHTED_CLUSTER = (FILTERS, *_OF_ROUTE)

_CREDENTIALS = frozenset({"authorization", "proxy-authorization", "x-api-key", "api-key", "cookie"})

Settings = dict[str, Any]


def settings_of(route: Node, names: Names) -> Settings:
    """Return the settings of one route, without those of this project's filters.

    Raises ConfigurationError if weighted clusters have settings of their own.
    """
    _refuse_weighted_clusters(route)
    filters = filters_of(route, names)
    found: Settings = {FILTERS: filters} if filters else {}
    for key in _OF_ROUTE:
        found[key] = value.data() if (value := route.get(key)) is not None else None
    for key in OF_ACTION:
        found[key] = value.data() if (value := route.at(f"route.{key}")) is not None else None
    # Empty values mean the same to Envoy as missing ones.
    return {key: value for key, value in found.items() if value}


def filters_of(route: Node, names: Names) -> dict[str, Any]:
    """Return the settings of the user's filters."""
    ours = (names.ext_proc, names.buffer)
    entries = route.entries_at(FILTERS)
    return {key: value.data() for key, value in entries.items() if key not in ours}


def credentials_of(route: Node) -> set[str]:
    """Return the names of request headers with credentials that a route adds."""
    added = {one.text("header.key").lower() for one in route.list("request_headers_to_add")}
    return added & _CREDENTIALS


def settings_of_block(routes: Seq[Node], names: Names) -> Settings:
    """Return the settings of existing new routes for the same requests.

    Raises ConfigurationError if they differ: a setting of one may be a secret, or may turn
    authentication off.
    """
    first, *others = [settings_of(one, names) for one in routes]
    for route, other in zip(routes[1:], others, strict=True):
        if keys := differing(first, other):
            raise ConfigurationError(
                f"{label(routes[0])} and {label(route)} are both routes for LLMs to update, but "
                f"have different settings ({', '.join(keys)}): give both the same, or change them "
                "by hand"
            )
    return first


def differing(one: Settings, other: Settings) -> list[str]:
    """Return the keys that only one of two settings has, or that have different values.

    Headers of responses do not count, because new routes add one of their own.
    """
    keys = ({*one} | {*other}) - {"response_headers_to_add"}
    return sorted(key for key in keys if one.get(key) != other.get(key))


def label(route: Node) -> str:
    """Return a name by which the user can find a route."""
    name = route.text("name")
    return f"route {name} (line {route.line})" if name else f"the route in line {route.line}"


def _refuse_weighted_clusters(route: Node) -> None:
    for cluster in route.list("route.weighted_clusters.clusters"):
        own = [key for key in _OF_WEIGHTED_CLUSTER if cluster.get(key) is not None]
        if own:
            raise ConfigurationError(
                f"line {cluster.line}: a weighted cluster has {own[0]} of its own, which the new "
                "routes for the same requests cannot have: move it to the route"
            )
