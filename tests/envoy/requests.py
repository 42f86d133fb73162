"""The route that Envoy selects for a request, from the data of a configuration."""

from __future__ import annotations

import re
from typing import Any

OURS = ("envoy.filters.http.ext_proc", "envoy.filters.http.buffer")
REQUEST_ID = {"key": "request-id", "value": "%REQ(X-REQUEST-ID)%"}

SETTINGS = (
    "typed_per_filter_config",
    "request_headers_to_add",
    "request_headers_to_remove",
    "response_headers_to_add",
    "response_headers_to_remove",
    "metadata",
)
ACTION_SETTINGS = ("rate_limits", "include_vh_rate_limits", "cors", "request_mirror_policies")


def selected(routes: list[Any], path: str, **headers: str) -> Any:
    """Return the first route that matches, or None. Header names have `_` instead of `-`."""
    sent = {":path": path, **{name.replace("_", "-"): text for name, text in headers.items()}}
    return next((one for one in routes if _matches(one["match"], sent)), None)


def settings(route: Any) -> dict[str, Any]:
    """Return a route's settings, without those that all new routes have."""
    action = route.get("route", {})
    found = {key: route[key] for key in SETTINGS if key in route}
    found |= {key: action[key] for key in ACTION_SETTINGS if key in action}
    filters = found.get("typed_per_filter_config", {})
    added = found.get("response_headers_to_add", [])
    found["typed_per_filter_config"] = {key: filters[key] for key in filters if key not in OURS}
    found["response_headers_to_add"] = [one for one in added if one.get("header") != REQUEST_ID]
    return {key: value for key, value in found.items() if value}


def _matches(match: Any, sent: dict[str, str]) -> bool:
    return _matches_path(match, sent[":path"].partition("?")[0]) and all(
        _matches_header(one, sent.get(one["name"])) for one in match.get("headers", [])
    )


def _matches_path(match: Any, path: str) -> bool:
    if match.get("case_sensitive") is False:
        path = path.lower()
        match = {key: one.lower() for key, one in match.items() if isinstance(one, str)}
    if "prefix" in match:
        return path.startswith(str(match["prefix"]))
    if "path" in match:
        return path == str(match["path"])
    if "path_separated_prefix" in match:
        return f"{path}/".startswith(f"{match['path_separated_prefix']}/")
    return re.fullmatch(match["safe_regex"]["regex"], path) is not None


def _matches_header(condition: Any, value: str | None) -> bool:
    if value is None:
        return False
    if "range_match" in condition:
        start, end = condition["range_match"]["start"], condition["range_match"]["end"]
        return bool(start <= int(value) < end)
    text = condition.get("string_match", {})
    if "safe_regex" in text:
        return re.fullmatch(text["safe_regex"]["regex"], value) is not None
    return value.startswith(text.get("prefix", ""))
