"""The parts of an Envoy configuration that concern requests, found in its tree."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from extproc.envoy.nodes import Mapping, Node

CONNECTION_MANAGER = "http_connection_manager.v3.HttpConnectionManager"
EXT_PROC = "filters.http.ext_proc.v3.ExternalProcessor"
BUFFER = "filters.http.buffer.v3.Buffer"
ROUTER = "filters.http.router.v3.Router"
HEADER_MUTATION = "early_header_mutation.header_mutation.v3.HeaderMutation"

ROUTING_HEADERS = (
    "x-target-endpoint",
    "x-target-endpoint-fallback",
    "x-gateway-destination-endpoint",
)
"""Request headers that choose an endpoint: no client may send one."""


@dataclass(frozen=True)
class Manager:
    """One HTTP connection manager of a listener."""

    number: int
    """Position among all connection managers of the file."""

    listener: str
    node: Mapping
    place: Node
    """The listener."""

    def virtual_hosts(self) -> list[Node]:
        return self.node.list("route_config.virtual_hosts")

    def filters(self) -> list[Node]:
        return self.node.list("http_filters")

    def other_source(self) -> str:
        """Return the key of another source of routes, such as `rds`, or ""."""
        return next((key for key in ("rds", "scoped_routes") if self.node.get(key)), "")


def managers(root: Node) -> list[Manager]:
    """Return the HTTP connection managers of all static listeners, in their order."""
    found = []
    for number, (listener, node) in enumerate(_managers(root)):
        name = listener.text("name") or f"number {listeners(root).index(listener) + 1}"
        found.append(Manager(number, name, node, listener))
    return found


def listeners(root: Node) -> list[Node]:
    return root.list("static_resources.listeners")


def clusters(root: Node) -> list[Node]:
    return root.list("static_resources.clusters")


def cluster(root: Node, name: str) -> Node | None:
    """Return the static cluster of this name."""
    return next((one for one in clusters(root) if one.text("name") == name), None)


def _managers(root: Node) -> Iterator[tuple[Node, Mapping]]:
    for listener in listeners(root):
        chains = listener.list("filter_chains")
        default = listener.get("default_filter_chain")
        for chain in [*chains, *([default] if default else [])]:
            for network_filter in chain.list("filters"):
                config = network_filter.get("typed_config")
                if isinstance(config, Mapping) and is_a(network_filter, CONNECTION_MANAGER):
                    yield listener, config


def is_a(node: Node, kind: str) -> bool:
    """Return True if an extension's `typed_config` is of this type."""
    return node.text("typed_config.@type").endswith("." + kind)


def of_kind(nodes: list[Node], kind: str) -> list[Node]:
    return [node for node in nodes if is_a(node, kind)]


def is_ours(ext_proc: Node) -> bool:
    """Return True if an ext_proc filter calls this sidecar: it accepts the sidecar's metadata."""
    untyped = ext_proc.at("typed_config.metadata_options.receiving_namespaces.untyped")
    names = untyped.data() if untyped is not None else []
    return isinstance(names, list) and "extproc" in names


def sidecar_filter(manager: Manager) -> Node | None:
    """Return the ext_proc filter that calls this sidecar."""
    return next((one for one in of_kind(manager.filters(), EXT_PROC) if is_ours(one)), None)


def reads_target(route: Node) -> bool:
    """Return True if a route matches requests that have a decision."""
    return ROUTING_HEADERS[0] in _matched_headers(route)


def names_second(route: Node) -> bool:
    """Return True if a route matches requests with a second candidate, by header or metadata."""
    metadata = [key for one in route.list("match.dynamic_metadata") for key in one.list("path")]
    keys = {key.text("key") for key in metadata}
    return ROUTING_HEADERS[1] in _matched_headers(route) | keys


def _matched_headers(route: Node) -> set[str]:
    return {header.text("name").lower() for header in route.list("match.headers")}


def cluster_of(route: Node) -> str:
    """Return the name of a route's single cluster, or ""."""
    return route.text("route.cluster")
