"""The routes of pieces 4 and 5, below the path prefixes that the user chooses."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from extproc.envoy.merge.paths import ANYWHERE, fully_matches, matches, samples
from extproc.envoy.merge.settings import OF_ACTION, Settings
from extproc.envoy.nodes import Alias, Mapping, Node, Scalar, Sequence, walk
from extproc.envoy.splice import add_entries, insert_items, replace_value
from extproc.envoy.tree import inline, parse

ANYWHERE_REGEX = ".*"

_AT_ROOT = r"(/inference)?(/v[12])?/[^/?]+/?(\?.*)?"
"""Pattern of `:path` for engines' paths at the root, with a version or without.

It is a condition of its own, because Envoy limits the size of a pattern."""


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
        routes = _with_path_condition(routes, index, {"prefix": f"{prefix}/"})
    for index in range(len(_items(routes))):
        routes = _remove_prefix(routes, index, prefix)
    return routes


def limited(routes: str, limit: str) -> str:
    """Return the routes for requests whose `:path` matches a pattern. "" matches all."""
    for index in range(len(_items(routes)) if limit else 0):
        routes = _with_path_condition(routes, index, {"safe_regex": {"regex": limit}})
    return routes


def limit_in(route: Node) -> str:
    """Return the limit of an existing route, or "" if it serves all LLM paths."""
    limits = [one.text("string_match.safe_regex.regex") for one in _path_conditions(route)]
    return next((one for one in limits if one and one != _AT_ROOT), "")


def serves(route: Node, path: str) -> bool:
    """Return True if all conditions of a new route on the path match."""
    return matches(route, path) and all(
        path.startswith(one.text("string_match.prefix"))
        and fully_matches(one.text("string_match.safe_regex.regex") or ".*", path)
        for one in _path_conditions(route)
    )


def mounts_below(limit: str, prefixes: tuple[str, ...]) -> tuple[str, ...]:
    """Return the prefixes whose LLM paths a limit matches, or all of them if it matches none."""
    found = [one for one in prefixes if any(fully_matches(limit, path) for path in samples(one))]
    return tuple(found) or prefixes


def mounts_of(ours: Iterable[Node]) -> tuple[str, ...]:
    """Return the prefixes of existing routes, or the root if there are none."""
    found: dict[str, None] = {}
    for route in ours:
        conditions = _path_conditions(route)
        prefixes = [text for one in conditions if (text := one.text("string_match.prefix"))]
        regex = route.text("match.safe_regex.regex")
        if prefixes:
            found[prefixes[0].rstrip("/")] = None
        elif regex.startswith(f"{ANYWHERE_REGEX}/v1/") or (
            regex.startswith(ANYWHERE_REGEX) and not conditions
        ):
            found[ANYWHERE] = None
        elif regex:
            found[""] = None
    return tuple(found) or ("",)


def with_settings(routes: str, settings: Settings) -> str:
    """Add to every route what the user's route has for the same requests.

    That is: settings of filters such as jwt_authn, headers, and rate limits.
    """
    for key, value in settings.items():
        for index in range(len(_items(routes))):
            routes = _with_setting(routes, index, key, value)
    return routes


def _anchored(routes: str) -> str:
    routes = routes.replace(", behind any prefix", "")
    spelled = [node for node in walk(parse(routes)) if isinstance(node, Mapping)]
    for node in reversed([found for one in spelled if (found := one.get("regex")) is not None]):
        assert isinstance(node, Scalar)
        anchored = node.value.removeprefix(ANYWHERE_REGEX)
        if anchored.startswith("/v1/"):
            routes = replace_value(routes, node, inline(anchored))
    for index, route in enumerate(_items(routes)):
        if route.text("match.safe_regex.regex").startswith(ANYWHERE_REGEX):
            routes = _with_own_headers(routes, index)
            routes = _with_path_condition(routes, index, {"safe_regex": {"regex": _AT_ROOT}})
    return routes


def _with_own_headers(routes: str, index: int) -> str:
    """Return the routes with a copy of header conditions that one shares with another route."""
    match = _items(routes)[index].get("match")
    assert isinstance(match, Mapping)
    headers = _own(match, "headers")
    return (
        replace_value(routes, headers, inline(headers.data()))
        if isinstance(headers, Alias)
        else routes
    )


def _path_conditions(route: Node) -> list[Node]:
    return [one for one in route.list("match.headers") if one.text("name") == ":path"]


def _with_path_condition(routes: str, index: int, string_match: dict[str, Any]) -> str:
    match = _items(routes)[index].get("match")
    assert isinstance(match, Mapping)
    condition = f'- {{name: ":path", string_match: {inline(string_match)}}}\n'
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


def _with_setting(routes: str, index: int, key: str, value: Any) -> str:
    route = _items(routes)[index]
    assert isinstance(route, Mapping)
    place: Node | None = _own(route, "route") if key in OF_ACTION else route
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
