"""Cuts the recommended configuration into pieces for a user's configuration.

A piece is the text of the shipped file, comments included, moved to column 0.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from textwrap import dedent

from extproc.envoy import envoy_configuration
from extproc.envoy.locate import ROUTER, is_a, managers
from extproc.envoy.names import Names
from extproc.envoy.nodes import Alias, Mapping, Node, Scalar, Sequence, walk
from extproc.envoy.splice import lines_of_entry, lines_of_item, replace_value
from extproc.envoy.tree import parse, scalar

ANCHOR_PREFIX = "extproc_"
"""Prefix of the anchors in the pieces, so that they never hide an anchor of the user."""


@dataclass(frozen=True)
class Pieces:
    """Block text of each piece, at column 0, in the order of the numbers in envoy.yaml."""

    early_removal: str
    """The entry `early_header_mutation_extensions`."""

    local_replies: str
    """Items of `local_reply_config.mappers`."""

    filters: str
    """Items of `http_filters`, without the router."""

    routes: str
    """Items of `routes`."""

    log_fields: str
    """Entries of a JSON access log that print the decision."""

    clusters: str
    """Items of `clusters`."""


def pieces(names: Names) -> Pieces:
    """Return the pieces of the recommended configuration, with these names."""
    text = envoy_configuration().read_text()
    root = parse(text)
    manager = managers(root)[0].node
    log = manager.list("access_log")[0].at("typed_config.log_format.json_format")
    assert isinstance(log, Mapping)
    decision = [key for key, value in log.values().items() if "(extproc:" in _text(value)]
    cut = Pieces(
        early_removal=dedent(lines_of_entry(text, manager, "early_header_mutation_extensions")),
        local_replies=_items(text, manager.at("local_reply_config.mappers"), _has_path),
        filters=_items(text, manager.get("http_filters"), lambda one: not is_a(one, ROUTER)),
        routes=_items(text, manager.list("route_config.virtual_hosts")[0].get("routes")),
        log_fields="".join(dedent(lines_of_entry(text, log, key)) for key in decision),
        clusters=_items(text, root.at("static_resources.clusters"), between="\n"),
    )
    named = {key: _own_anchors(value) for key, value in vars(cut).items()}
    for key in ("filters", "routes", "clusters"):
        named[key] = renamed(named[key], names.renamed())
    return Pieces(**named)


def renamed(block: str, names: dict[str, str]) -> str:
    """Replace the names of clusters and filters that a piece defines or uses."""
    places = [
        (node, names[node.value])
        for node in _named(parse(block), "")
        if isinstance(node, Scalar) and node.value in names
    ]
    for node, name in sorted(places, key=lambda place: -place[0].start):
        block = replace_value(block, node, scalar(name))
    return block


def items_of(block: str) -> dict[str, str]:
    """Return the text of each item of a block, by the item's name."""
    root = parse(block)
    assert isinstance(root, Sequence)
    names = [item.text("name") for item in root.items]
    return {name: lines_of_item(block, root, index) for index, name in enumerate(names)}


def _named(node: Node, key: str) -> Iterable[Node]:
    """Yield the scalars that are names of clusters or filters, but not names of routes.

    They are the values of three keys, and the keys of `typed_per_filter_config`.
    """
    if isinstance(node, Sequence):
        for item in node.items:
            yield from _named(item, key)
    if isinstance(node, Mapping):
        is_route = node.get("match") is not None
        for name, value in node.entries:
            assert isinstance(name, Scalar)
            if key == "typed_per_filter_config":
                yield name
            if name.value in ("cluster", "cluster_name") or (name.value == "name" and not is_route):
                yield value
            yield from _named(value, name.value)


def _has_path(mapper: Node) -> bool:
    """Return True for mappers of LLM paths. Other paths of a shared listener are the user's."""
    return any(
        isinstance(node, Alias) or node.get("header") is not None
        for node in walk(mapper.get("filter") or mapper)
    )


def _items(
    text: str,
    sequence: Node | None,
    keep: Callable[[Node], bool] = lambda item: True,
    between: str = "",
) -> str:
    assert isinstance(sequence, Sequence)
    lines = [lines_of_item(text, sequence, i) for i, one in enumerate(sequence.items) if keep(one)]
    return between.join(dedent(one) for one in lines)


def _own_anchors(block: str) -> str:
    for name in {node.anchor for node in walk(parse(block)) if node.anchor}:
        block = re.sub(rf"([&*]){name}\b", rf"\1{ANCHOR_PREFIX}{name}", block)
    return block


def _text(node: Node) -> str:
    return node.value if isinstance(node, Scalar) else ""
