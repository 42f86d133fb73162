"""Pieces 4 and 5: the routes of LLM requests, among the user's own routes."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import Any

from extproc.envoy.locate import Manager, cluster_of, reads_target
from extproc.envoy.merge.mounted import mounted, with_extras
from extproc.envoy.merge.paths import is_catch_all, is_conditional, takes_llm_paths
from extproc.envoy.merge.plan import Plan, covers, manager_in
from extproc.envoy.names import Names
from extproc.envoy.nodes import Mapping, Node, Sequence
from extproc.envoy.problems import ConfigurationError
from extproc.envoy.splice import add_entries, insert_items, replace_items, with_fresh_anchors
from extproc.envoy.tree import parse

_INHERITED = (
    "request_headers_to_add",
    "request_headers_to_remove",
    "response_headers_to_add",
    "response_headers_to_remove",
    "metadata",
)
_REWRITES = (
    "prefix_rewrite",
    "regex_rewrite",
    "path_rewrite_policy",
    "host_rewrite_literal",
    "auto_host_rewrite",
)


def add_routes(text: str, number: int, plan: Plan) -> str:
    """Add the routes, or update existing ones in place.

    They come after the user's specific routes and before those that would hide them.
    """
    manager = manager_in(text, number)
    host = virtual_host(manager, plan.virtual_host)
    routes = host.get("routes")
    items = host.list("routes")
    ours = [i for i, one in enumerate(items) if is_our_route(one, plan.names)]
    users = [one for i, one in enumerate(items) if i not in ours]
    hidden_by = _hiding(users, plan)
    block = _wanted(_extras([items[i] for i in ours] or hidden_by, plan), plan)
    _add_notes(users, hidden_by, plan)
    if not isinstance(host, Mapping):
        raise ConfigurationError(f"line {host.line}: a virtual host must be a mapping")
    if not isinstance(routes, Sequence):
        return add_entries(text, host, f"routes:\n{block}")
    first_hiding = items.index(hidden_by[0]) if hidden_by else len(items)
    if ours and ours[-1] < first_hiding:
        up_to_date = covers([items[i].data() for i in ours], parse(block).data())
        return text if up_to_date else replace_items(text, routes, ours, block)
    if not ours:
        return insert_items(text, routes, first_hiding, block)
    # The user has added a route that hides ours, so move ours before it.
    text = insert_items(text, routes, first_hiding, block)
    moved = virtual_host(manager_in(text, number), plan.virtual_host).get("routes")
    assert isinstance(moved, Sequence)
    added = len(moved.items) - len(items)
    stale = [i if i < first_hiding else i + added for i in ours]
    return replace_items(text, moved, stale, "")


def virtual_host(manager: Manager, name: str) -> Node:
    return next(one for one in manager.virtual_hosts() if one.text("name") == name)


def is_our_route(route: Node, names: Names) -> bool:
    """Return True if a route comes from this project's pieces, of this version or an older one."""
    to = cluster_of(route)
    if reads_target(route) or (to and to == names.chosen):
        return True
    has_ext_proc = names.ext_proc in route.entries_at("typed_per_filter_config")
    return to == names.fallback and (
        has_ext_proc or is_catch_all(route) or _is_named_like_ours(route)
    )


def _is_named_like_ours(route: Node) -> bool:
    return route.text("name") in ("large", "fallback")


def _hiding(users: Seq[Node], plan: Plan) -> list[Node]:
    """Return the user's routes that would match LLM requests if they came first."""
    return [
        one
        for one in users
        if not is_conditional(one)
        and takes_llm_paths(one, plan.prefixes)
        and (is_catch_all(one) or one.get("route") is not None)
    ]


def _wanted(extras: dict[str, Any], plan: Plan) -> str:
    block = ""
    for prefix in plan.prefixes:
        one = with_extras(mounted(plan.pieces.routes, prefix), extras)
        block += with_fresh_anchors(one, block)
    return block


def _extras(sources: Seq[Node], plan: Plan) -> dict[str, Any]:
    """Return the settings that LLM requests have from the user's routes, or from our old ones.

    All new routes get all of them. For example, a path that required a token must still do so.
    """
    ours = (plan.names.ext_proc, plan.names.buffer)
    found: dict[str, Any] = {}
    for route in sources:
        settings = route.entries_at("typed_per_filter_config")
        kept = {key: value.data() for key, value in settings.items() if key not in ours}
        so_far = found.get("typed_per_filter_config", {})
        for key in [key for key in kept if key in so_far and kept[key] != so_far[key]]:
            plan.note(f"{label(route)}: its {key} differs from that of the new routes: check them")
        if kept:
            found["typed_per_filter_config"] = {**kept, **so_far}
        for key in _INHERITED:
            if (value := route.get(key)) is not None:
                found.setdefault(key, value.data())
        if (limits := route.at("route.rate_limits")) is not None:
            found.setdefault("rate_limits", limits.data())
    return found


def _add_notes(users: Seq[Node], hidden_by: Seq[Node], plan: Plan) -> None:
    for route in users:
        if route in hidden_by and not is_catch_all(route):
            plan.note(f"{label(route)}: its LLM requests now go to the new routes before it")
        elif route not in hidden_by and takes_llm_paths(route, plan.prefixes):
            plan.note(f"{label(route)}: its LLM requests get no decision, because it comes first")
    for route in hidden_by[:1]:
        rewrites = [key for key in _REWRITES if route.at(f"route.{key}") is not None]
        if rewrites:
            plan.note(
                f"{label(route)}: its {', '.join(rewrites)} is missing in the new routes: add it "
                "there if you need it"
            )


def label(route: Node) -> str:
    """Return a name by which the user can find a route."""
    name = route.text("name")
    return f"route {name} (line {route.line})" if name else f"the route in line {route.line}"
