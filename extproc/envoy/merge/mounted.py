"""The routes of pieces 4 and 5, below the path prefixes that the user chooses."""

from __future__ import annotations

import re
from collections.abc import Iterable
from collections.abc import Mapping as Map
from typing import Any

from extproc.envoy.nodes import Mapping, Node, Scalar, Sequence, walk
from extproc.envoy.splice import add_entries, insert_items, replace_value
from extproc.envoy.tree import inline, parse

ANYWHERE = "*"
"""The prefix of the recommended configuration: LLM paths behind any prefix."""

ANYWHERE_REGEX = ".*"


def mounted(routes: str, prefix: str) -> str:
    """Return the routes for LLM paths directly below a prefix, which Envoy removes.

    The recommended configuration matches LLM paths behind any prefix. If the listener has other
    services, that is too much: `/api/v1/messages` may be one of their paths. So the patterns begin
    at the root, or the routes match the prefix and remove it.
    """
    if prefix == ANYWHERE:
        return routes
    if not prefix:
        return _anchored(routes)
    routes = routes.replace(", behind any prefix", f", below {prefix}")
    for index in range(len(_items(routes))):
        routes = _match_prefix(routes, index, prefix)
    for index in range(len(_items(routes))):
        routes = _remove_prefix(routes, index, prefix)
    return routes


def mounts_of(ours: Iterable[Node]) -> tuple[str, ...]:
    """Return the prefixes of existing routes, or the root if there are none."""
    found: dict[str, None] = {}
    for route in ours:
        conditions = [one for one in route.list("match.headers") if one.text("name") == ":path"]
        regex = route.text("match.safe_regex.regex")
        if conditions:
            found[conditions[0].text("string_match.prefix").rstrip("/")] = None
        elif regex:
            found[ANYWHERE if regex.startswith(ANYWHERE_REGEX) else ""] = None
    return tuple(found) or ("",)


def with_extras(routes: str, extras: Map[str, Any]) -> str:
    """Add to every route what the user's route has for the same requests.

    That is: settings of filters such as jwt_authn, headers, and rate limits.
    """
    for key, value in extras.items():
        for index in range(len(_items(routes))):
            routes = _with_extra(routes, index, key, value)
    return routes


def _anchored(routes: str) -> str:
    routes = routes.replace(", behind any prefix", "")
    spelled = [node for node in walk(parse(routes)) if isinstance(node, Mapping)]
    for node in reversed([found for one in spelled if (found := one.get("regex")) is not None]):
        assert isinstance(node, Scalar)
        routes = replace_value(routes, node, inline(node.value.removeprefix(ANYWHERE_REGEX)))
    return routes


def _match_prefix(routes: str, index: int, prefix: str) -> str:
    match = _items(routes)[index].get("match")
    assert isinstance(match, Mapping)
    condition = f'- {{name: ":path", string_match: {{prefix: {inline(prefix + "/")}}}}}\n'
    headers = _own(match, "headers")
    if headers is None:
        return add_entries(routes, match, f"headers:\n{condition}")
    if isinstance(headers, Sequence):
        return insert_items(routes, headers, len(headers.items), condition)
    return routes  # an alias of a list that has the condition


def _remove_prefix(routes: str, index: int, prefix: str) -> str:
    route = _items(routes)[index]
    assert isinstance(route, Mapping)
    action = _own(route, "route")
    pattern = inline(f"^{re.escape(prefix)}/")
    rewrite = f"regex_rewrite: {{pattern: {{regex: {pattern}}}, substitution: /}}\n"
    return add_entries(routes, action, rewrite) if isinstance(action, Mapping) else routes


def _with_extra(routes: str, index: int, key: str, value: Any) -> str:
    route = _items(routes)[index]
    assert isinstance(route, Mapping)
    place: Node | None = _own(route, "route") if key == "rate_limits" else route
    if not isinstance(place, Mapping):
        return routes  # an alias of an action that has them
    existing = _own(place, key)
    if existing is None:
        return add_entries(routes, place, _entry(key, value))
    if isinstance(existing, Sequence) and isinstance(value, list):
        block = "".join(f"- {inline(one)}\n" for one in value if one not in existing.data())
        return insert_items(routes, existing, len(existing.items), block) if block else routes
    if isinstance(existing, Mapping) and isinstance(value, dict):
        there = existing.values()
        block = "".join(_entry(name, one) for name, one in value.items() if name not in there)
        return add_entries(routes, existing, block) if block else routes
    return routes  # an alias of a value that has them, or a value that Envoy refuses or ignores


def _own(place: Mapping, key: str) -> Node | None:
    """Return the value of a key as it is written, which may be an alias."""
    found = place.key(key)
    return next((value for name, value in place.entries if name is found), None)


def _entry(key: str, value: Any) -> str:
    # JSON is also YAML, and keeps types that YAML would guess from plain text.
    return f"{inline(key)}: {inline(value)}\n"


def _items(routes: str) -> list[Node]:
    root = parse(routes)
    assert isinstance(root, Sequence)
    return [item.target for item in root.items]
