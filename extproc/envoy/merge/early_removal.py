"""Piece 1: removes routing headers of clients before the first route selection."""

from __future__ import annotations

from extproc.envoy.locate import HEADER_MUTATION, ROUTING_HEADERS, of_kind
from extproc.envoy.merge.plan import Plan, manager_in
from extproc.envoy.nodes import Mapping, Node, Sequence
from extproc.envoy.splice import add_entries, insert_items
from extproc.envoy.tree import parse

KEY = "early_header_mutation_extensions"


def add_early_removal(text: str, number: int, plan: Plan) -> str:
    """Add the removal to a connection manager after its existing mutations."""
    manager = manager_in(text, number).node
    extensions = manager.get(KEY)
    if not isinstance(extensions, Sequence):
        return add_entries(text, manager, plan.pieces.early_removal, before="http_filters")
    mutations = of_kind(manager.list(KEY), HEADER_MUTATION)
    missing = [one for one in ROUTING_HEADERS if one not in removed_early(manager)]
    if not missing:
        return text
    lists = [one.at("typed_config.mutations") for one in mutations]
    existing = next((one for one in lists if isinstance(one, Sequence) and one.items), None)
    if existing is None:
        item = parse(plan.pieces.early_removal)
        assert isinstance(item, Mapping)
        entry = item.get(KEY)
        assert isinstance(entry, Sequence)
        block = plan.pieces.early_removal[entry.start :]
        return insert_items(text, extensions, len(extensions.items), block)
    block = "".join(f"- remove: {one}\n" for one in missing)
    return insert_items(text, existing, len(existing.items), block)


def removed_early(manager: Node) -> set[str]:
    """Return the request headers that a connection manager removes before it selects a route."""
    extensions = of_kind(manager.list(KEY), HEADER_MUTATION)
    mutations = [one for each in extensions for one in each.list("typed_config.mutations")]
    return {one.text("remove").lower() for one in mutations} - {""}
