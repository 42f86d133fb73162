"""The routes of pieces 4 and 5 for the paths where a user wants them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from collections.abc import Mapping as Map
from typing import Any

from extproc.envoy.splice import add_entries, insert_items, replace_value
from extproc.envoy.tree import Alias, Mapping, Node, Scalar, Sequence, inline, parse, walk

ANYWHERE = "*"
"""The prefix of the recommended configuration: LLM paths behind any prefix."""

ANYWHERE_REGEX = ".*"


def mounted(routes: str, prefix: str) -> str:
    """Return the routes for LLM paths right below a prefix, which the servers do not see.

    The recommended configuration takes LLM paths behind any prefix. Beside other services that
    would be too much: `/api/v1/messages` may be a path of theirs. So the patterns begin at the
    root, or the routes ask for the prefix and remove it.
    """
    if prefix == ANYWHERE:
        return routes
    if not prefix:
        return _anchored(routes)
    routes = routes.replace(", behind any prefix", f", below {prefix}")
    for index in range(len(_items(routes))):
        routes = _asks_for_prefix(routes, index, prefix)
    for index in range(len(_items(routes))):
        routes = _removes_prefix(routes, index, prefix)
    return routes


def mounts_of(ours: Iterable[Node]) -> tuple[str, ...]:
    """Return the prefixes of routes that are there; the root where there are none."""
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
    """Add to every route what the user's route gave to the same requests: settings of filters
    such as jwt_authn, headers, rate limits.
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


def _asks_for_prefix(routes: str, index: int, prefix: str) -> str:
    match = _items(routes)[index].get("match")
    assert isinstance(match, Mapping)
    condition = f'- {{name: ":path", string_match: {{prefix: {inline(prefix + "/")}}}}}\n'
    headers = next((v for k, v in match.entries if k is match.key("headers")), None)
    if headers is None:
        return add_entries(routes, match, f"headers:\n{condition}")
    if isinstance(headers, Sequence):
        return insert_items(routes, headers, len(headers.items), condition)
    return routes  # an alias of a list that has it


def _removes_prefix(routes: str, index: int, prefix: str) -> str:
    action = _own(_items(routes)[index], "route")
    pattern = inline(f"^{re.escape(prefix)}/")
    rewrite = f"regex_rewrite: {{pattern: {{regex: {pattern}}}, substitution: /}}\n"
    return add_entries(routes, action, rewrite) if action is not None else routes


def _with_extra(routes: str, index: int, key: str, value: Any) -> str:
    route = _items(routes)[index]
    if key == "rate_limits":
        action = _own(route, "route")
        return add_entries(routes, action, _entry(key, value)) if action is not None else routes
    if key != "typed_per_filter_config":
        assert isinstance(route, Mapping)
        return add_entries(routes, route, _entry(key, value))
    if route.get(key) is None:
        assert isinstance(route, Mapping)
        return add_entries(routes, route, _entry(key, value))
    config = _own(route, key)
    if config is None:
        return routes
    block = "".join(_entry(name, one) for name, one in value.items())
    return add_entries(routes, config, block)


def _own(route: Node, key: str) -> Mapping | None:
    """Return a mapping that the route spells out; None where it is an alias of another's."""
    assert isinstance(route, Mapping)
    found = next(value for name, value in route.entries if name is route.key(key))
    assert isinstance(found, Mapping | Alias)
    return found if isinstance(found, Mapping) else None


def _entry(key: str, value: Any) -> str:
    # JSON is YAML, and keeps types that YAML would guess from plain text.
    return f"{inline(key)}: {inline(value)}\n"


def _items(routes: str) -> list[Node]:
    root = parse(routes)
    assert isinstance(root, Sequence)
    return [item.target for item in root.items]
