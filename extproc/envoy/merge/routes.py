"""Pieces 4 and 5: the routes of LLM requests, among the user's own routes."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import Any

from extproc.envoy.locate import Manager, cluster_of, reads_target
from extproc.envoy.merge.mounted import limited, mounted, mounts_below, with_settings
from extproc.envoy.merge.paths import is_catch_all, takes_engine_paths, takes_llm_paths
from extproc.envoy.merge.plan import Plan, covers, manager_in
from extproc.envoy.merge.sections import Section, blocks_of, forwarding, reached, sections
from extproc.envoy.merge.settings import Settings, credentials_of, label, settings_of_block
from extproc.envoy.names import Names
from extproc.envoy.nodes import Mapping, Node, Sequence
from extproc.envoy.problems import ConfigurationError
from extproc.envoy.splice import add_entries, insert_items, replace_items, with_fresh_anchors
from extproc.envoy.tree import parse

_REWRITES = (
    "prefix_rewrite",
    "regex_rewrite",
    "path_rewrite_policy",
    "host_rewrite_literal",
    "auto_host_rewrite",
)

_ADDED = "response_headers_to_add"


def add_routes(text: str, number: int, plan: Plan) -> str:
    """Add the routes, or update existing ones in place.

    They come directly before the user's routes that forward the same requests now.
    """
    _add_notes(virtual_host(manager_in(text, number), plan.virtual_host).list("routes"), plan)
    while (edited := _with_next_edit(text, number, plan)) != text:
        text = edited
    return text


def _with_next_edit(text: str, number: int, plan: Plan) -> str:
    """Return the text with one block of routes updated or added, or unchanged if none is missing.

    Each edit moves the text after it, so the next one begins with a new tree.
    """
    host = virtual_host(manager_in(text, number), plan.virtual_host)
    if not isinstance(host, Mapping):
        raise ConfigurationError(f"line {host.line}: a virtual host must be a mapping")
    _refuse_matcher(host)
    items = host.list("routes")
    ours = [i for i, one in enumerate(items) if is_our_route(one, plan.names)]
    missing = sections(items, ours, plan)
    routes = host.get("routes")
    if not isinstance(routes, Sequence):
        return add_entries(text, host, f"routes:\n{_wanted('', {}, plan)}")
    for limit, block in blocks_of(items, ours).items():
        existing = [items[i] for i in block]
        if not _up_to_date(existing, _wanted(limit, {}, plan)):
            settings = settings_of_block(existing, plan.names)
            return replace_items(text, routes, block, _wanted(limit, settings, plan))
    return _with_section(text, number, missing[-1], plan) if missing else text


def _with_section(text: str, number: int, section: Section, plan: Plan) -> str:
    def routes() -> Sequence:
        found = virtual_host(manager_in(text, number), plan.virtual_host).get("routes")
        assert isinstance(found, Sequence)
        return found

    count = len(routes().items)
    block = _wanted(section.limit, section.settings, plan)
    text = insert_items(text, routes(), section.before, block)
    if not section.stale:
        return text
    # The user has added a route that hides ours, so move ours before it.
    added = len(routes().items) - count
    return replace_items(text, routes(), [i + added for i in section.stale], "")


def _refuse_matcher(host: Mapping) -> None:
    matcher = host.key("matcher")
    if matcher is not None:
        raise ConfigurationError(
            f"virtual host {host.text('name')} selects routes with a `matcher` (line "
            f"{matcher.line}), and Envoy allows no `routes` with it: write its routes as "
            "`routes`, or give LLM requests a virtual host of their own and name it with "
            "--virtual-host"
        )


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


def _wanted(limit: str, settings: Settings, plan: Plan) -> str:
    block = ""
    for prefix in mounts_below(limit, plan.prefixes):
        one = limited(mounted(plan.pieces.routes, prefix), limit)
        block += with_fresh_anchors(with_settings(one, settings), block)
    return block


def _up_to_date(existing: Seq[Node], wanted: str) -> bool:
    """Return True if routes have everything of the pieces. They may have further settings."""
    pieces = parse(wanted).data()
    return len(existing) == len(pieces) and all(
        _has_piece(one.data(), piece) for one, piece in zip(existing, pieces, strict=True)
    )


def _has_piece(route: dict[str, Any], piece: dict[str, Any]) -> bool:
    added = route.get(_ADDED)
    others = {key: value for key, value in piece.items() if key != _ADDED}
    return (
        isinstance(added, list)
        and all(one in added for one in piece.get(_ADDED, []))
        and covers(route, others)
    )


def _add_notes(items: Seq[Node], plan: Plan) -> None:
    ours = [i for i, one in enumerate(items) if is_our_route(one, plan.names)]
    sources = forwarding(items, ours, plan)
    for i in reached(items, ours, plan):
        route = items[i]
        if is_catch_all(route):
            pass
        elif i in sources:
            plan.note(f"{label(route)}: its LLM requests now go to the new routes before it")
        elif takes_llm_paths(route, plan.prefixes) or takes_engine_paths(route, plan.prefixes):
            plan.note(f"{label(route)}: its LLM requests get no decision, because it comes first")
    for i in sources:
        rewrites = [key for key in _REWRITES if items[i].at(f"route.{key}") is not None]
        if rewrites:
            plan.note(
                f"{label(items[i])}: its {', '.join(rewrites)} is missing in the new routes: add "
                "it there if you need it"
            )
        for name in sorted(credentials_of(items[i])):
            plan.note(f"{label(items[i])}: its header {name} now goes to the model servers")
    if sources and "" not in blocks_of(items, ours) and not is_catch_all(items[sources[-1]]):
        plan.note(
            "the new routes serve only the LLM requests that your routes forward now. To serve all "
            "LLM paths, add a route for `prefix: /` after them and run this command again"
        )
