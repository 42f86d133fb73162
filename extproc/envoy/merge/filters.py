"""Piece 3: the buffer filter and the ext_proc filter, directly before the router."""

from __future__ import annotations

from extproc.envoy.locate import BUFFER, EXT_PROC, ROUTER, Manager, is_a, is_ours, of_kind
from extproc.envoy.merge.plan import Plan, covers, manager_in
from extproc.envoy.nodes import Sequence
from extproc.envoy.problems import ConfigurationError
from extproc.envoy.splice import insert_items, replace_items
from extproc.envoy.tree import parse


def add_filters(text: str, number: int, plan: Plan) -> str:
    """Add both filters, or update existing ones in place."""
    manager = manager_in(text, number)
    filters = manager.node.get("http_filters")
    if not isinstance(filters, Sequence) or not filters.items:
        raise ConfigurationError(
            f"listener {manager.listener}: its http_filters are empty: add the router filter first"
        )
    _refuse_second_ext_proc(manager)
    ours = _ours(manager)
    if covers([filters.items[i].data() for i in ours], parse(plan.pieces.filters).data()):
        return text
    if ours:
        return replace_items(text, filters, ours, plan.pieces.filters)
    return insert_items(text, filters, _position(manager), plan.pieces.filters)


def _ours(manager: Manager) -> list[int]:
    filters = manager.filters()
    ext_procs = [i for i, one in enumerate(filters) if is_a(one, EXT_PROC) and is_ours(one)]
    buffers = [i - 1 for i in ext_procs if i and is_a(filters[i - 1], BUFFER)]
    return sorted(ext_procs + buffers)


def _position(manager: Manager) -> int:
    """Return the router's position. Filters for authentication and limits come before ours."""
    filters = manager.filters()
    routers = [i for i, one in enumerate(filters) if is_a(one, ROUTER)]
    return routers[0] if routers else len(filters) - 1


def _refuse_second_ext_proc(manager: Manager) -> None:
    others = [one for one in of_kind(manager.filters(), EXT_PROC) if not is_ours(one)]
    if others:
        raise ConfigurationError(
            f"listener {manager.listener}: http_filters has {others[0].text('name')!r} (line "
            f"{others[0].line}), an ext_proc filter of another service. Two ext_proc filters in "
            "one chain corrupt bodies: give LLM requests a listener of their own"
        )
