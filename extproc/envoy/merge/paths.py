"""Paths of LLM servers, and the user's routes that match them."""

from __future__ import annotations

import re

from extproc.envoy.nodes import Node, walk
from extproc.envoy.tree import parse

ANYWHERE = "*"
"""The prefix of the recommended configuration: LLM paths behind any prefix."""

_ANY = ".*"
_AND_BELOW = "(/.*)?"

_BARE = (
    "/generate",
    "/generative_scoring",
    "/invocations",
    "/rerank",
    "/score",
    "/pooling",
    "/classify",
    "/tokenize",
    "/detokenize",
    "/encode",
)
"""Paths that engines serve at their root. Other services may use such names, too."""

_VERSIONED = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/v1/messages",
    "/v1/embeddings",
    "/v1/audio/transcriptions",
    "/v1/audio/translations",
    "/v1/images/generations",
    "/v1/videos",
    "/v1/models",
    "/v2/embed",
    *(
        f"{version}{path}"
        for version in ("/v1", "/v2", "/inference", "/inference/v1", "/inference/v2")
        for path in _BARE
    ),
)

_BEGINNINGS = ("/v1/audio", "/v1/images", *_VERSIONED, *_BARE)
"""Every LLM path at the root begins with one of these."""

_PATH_CONDITIONS = frozenset(
    {"prefix", "path", "path_separated_prefix", "safe_regex", "case_sensitive"}
)

_NEVER_IN_QUERY = re.compile(
    # Nothing that matches a question mark, except at the end.
    r"(?:[\w/|()?+*{},:-]|\\[.dw-]|\[(?:a-z|A-Z|0-9|_)+-?\])*"
    r"(?:\.\*[)?]*)?"
)
"""Regular expressions that match no query string unless they also match the path before it."""

_MOST_CHARACTERS = 80
"""Characters of a pattern that Envoy accepts for certain: it may compile to 100 instructions."""


def v1_regex(routes: str) -> str:
    """Return the piece's pattern for `/v1/` paths without its optional prefix and suffix."""
    regex = next(node.text("regex") for node in walk(parse(routes)) if node.text("regex"))
    return regex.removeprefix(_ANY).removesuffix(_AND_BELOW)


def takes_llm_paths(route: Node, prefixes: tuple[str, ...]) -> bool:
    """Return True if a route's path condition matches a path such as `/v1/messages`."""
    return _takes_one_of(_VERSIONED, route, prefixes)


def takes_engine_paths(route: Node, prefixes: tuple[str, ...]) -> bool:
    """Return True if a route's path condition matches a path such as `/tokenize`."""
    return _takes_one_of(_BARE, route, prefixes)


def never_takes_llm_paths(route: Node, prefixes: tuple[str, ...]) -> bool:
    """Return True if a route's path condition certainly matches no path of the new routes."""
    match = route.get("match")
    kind = next(
        (key for key in ("prefix", "path", "path_separated_prefix") if _text(route, key)), ""
    )
    if match is None or not kind or ANYWHERE in prefixes:
        return False
    path = match.text(kind).lower()
    beginnings = [
        one.lower() for prefix in prefixes for one in ([f"{prefix}/"] if prefix else _BEGINNINGS)
    ]
    return not any(one.startswith(path) or path.startswith(one) for one in beginnings)


def is_conditional(route: Node) -> bool:
    """Return True if a route matches by more than a path, such as headers or a fraction."""
    return any(key not in _PATH_CONDITIONS for key in route.entries_at("match"))


def is_catch_all(route: Node) -> bool:
    """Return True if a route matches every request."""
    return not is_conditional(route) and (
        route.text("match.prefix") == "/" or route.text("match.safe_regex.regex") in (".*", "/.*")
    )


def limit_of(route: Node) -> str:
    """Return a pattern of `:path` that matches exactly what an unconditional route matches.

    "" means that there is none: the path condition is too long for Envoy's limit, or a regular
    expression that could match text in the query string, which the route itself never sees.
    """
    if prefix := _text(route, "prefix"):
        limit = f"{re.escape(prefix)}.*"
    elif path := _text(route, "path"):
        limit = rf"{re.escape(path)}(\?.*)?"
    elif parent := _text(route, "path_separated_prefix"):
        limit = f"{re.escape(parent)}([/?].*)?"
    else:
        return _limit_of_regex(route.text("match.safe_regex.regex"))
    limit = f"(?i:{limit})" if _text(route, "case_sensitive") == "false" else limit
    return limit if len(limit) <= _MOST_CHARACTERS else ""


def _limit_of_regex(regex: str) -> str:
    limit = rf"(?:{regex})(\?.*)?"
    exact = len(limit) <= _MOST_CHARACTERS and _NEVER_IN_QUERY.fullmatch(regex)
    return limit if regex and exact else ""


def _text(route: Node, key: str) -> str:
    return route.text(f"match.{key}")


def samples(prefix: str) -> list[str]:
    """Return a path of each kind below a prefix."""
    return [prefix.strip(ANYWHERE) + path for path in (*_VERSIONED, *_BARE)]


def _takes_one_of(paths: tuple[str, ...], route: Node, prefixes: tuple[str, ...]) -> bool:
    return any(
        matches(route, prefix.strip(ANYWHERE) + path) for prefix in prefixes for path in paths
    )


def matches(route: Node, path: str) -> bool:
    """Return True if a route's path condition matches a path without a query string."""
    match = route.get("match")
    if match is None:
        return False
    lower = match.text("case_sensitive") == "false"
    path = path.lower() if lower else path

    def text(key: str) -> str:
        return match.text(key).lower() if lower else match.text(key)

    if (prefix := match.get("prefix")) is not None:
        return path.startswith(text("prefix") if prefix else "")
    if match.get("path") is not None:
        return path == text("path")
    if match.get("path_separated_prefix") is not None:
        return (path + "/").startswith(text("path_separated_prefix") + "/")
    return fully_matches(match.text("safe_regex.regex"), path)


def fully_matches(regex: str, path: str) -> bool:
    try:
        return bool(regex) and re.fullmatch(regex, path) is not None
    except re.error:
        # RE2 and Python differ in rare syntax. Such a route keeps its position.
        return False
