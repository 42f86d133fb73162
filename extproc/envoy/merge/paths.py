"""Paths of LLM servers, and the user's routes that match them."""

from __future__ import annotations

import re

from extproc.envoy.nodes import Node, walk
from extproc.envoy.tree import parse

_ANYWHERE = ".*"
_AND_BELOW = "(/.*)?"

_SAMPLES = tuple(
    f"/v1/{path}"
    for path in (
        "chat/completions",
        "completions",
        "responses",
        "messages",
        "embeddings",
        "audio/transcriptions",
        "images/generations",
        "models",
    )
)

_PATH_CONDITIONS = frozenset(
    {"prefix", "path", "path_separated_prefix", "safe_regex", "case_sensitive"}
)


def v1_regex(routes: str) -> str:
    """Return the piece's pattern for `/v1/` paths without its optional prefix and suffix."""
    regex = next(node.text("regex") for node in walk(parse(routes)) if node.text("regex"))
    return regex.removeprefix(_ANYWHERE).removesuffix(_AND_BELOW)


def takes_llm_paths(route: Node, prefixes: tuple[str, ...]) -> bool:
    """Return True if a route's path condition matches a `/v1/` path of an LLM server."""
    return any(
        _matches(route, prefix.strip("*") + path) for prefix in prefixes for path in _SAMPLES
    )


def is_conditional(route: Node) -> bool:
    """Return True if a route matches by more than a path, such as headers or a fraction."""
    return any(key not in _PATH_CONDITIONS for key in route.entries_at("match"))


def is_catch_all(route: Node) -> bool:
    """Return True if a route matches every request."""
    return not is_conditional(route) and (
        route.text("match.prefix") == "/" or route.text("match.safe_regex.regex") in (".*", "/.*")
    )


def _matches(route: Node, path: str) -> bool:
    match = route.get("match")
    if match is None:
        return False
    if match.text("case_sensitive") == "false":
        path = path.lower()
    if (prefix := match.get("prefix")) is not None:
        return path.startswith(match.text("prefix") if prefix else "")
    if match.get("path") is not None:
        return path == match.text("path")
    if match.get("path_separated_prefix") is not None:
        return (path + "/").startswith(match.text("path_separated_prefix") + "/")
    regex = match.text("safe_regex.regex")
    try:
        return bool(regex) and re.fullmatch(regex, path) is not None
    except re.error:
        # RE2 and Python differ in rare syntax. Such a route keeps its position.
        return False
