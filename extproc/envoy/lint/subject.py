"""The parts of a configuration that the rules inspect: a listener with an ext_proc filter."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from extproc.envoy.locate import (
    BUFFER,
    EXT_PROC,
    ROUTING_HEADERS,
    Manager,
    cluster,
    cluster_of,
    is_ours,
    managers,
    of_kind,
    reads_target,
)
from extproc.envoy.merge.paths import is_catch_all, takes_llm_paths
from extproc.envoy.nodes import Node, Scalar, Sequence, walk

MOST_BODY = 8388608
"""Bytes of the largest body that the recommended configuration buffers for the sidecar."""

DEFAULT_BUFFER = 1048576
"""Envoy's per_connection_buffer_limit_bytes."""


@dataclass(frozen=True)
class Route:
    """A route and the filter settings that apply to it."""

    node: Node
    host: Node
    config: Node
    """The route configuration."""

    @property
    def label(self) -> str:
        name = self.node.text("name")
        return f"route {name}" if name else "route"

    def setting(self, name: str) -> Node | None:
        """Return a filter's setting of the route, else of the virtual host, else of all routes."""
        for level in (self.node, self.host, self.config):
            found = level.entries_at("typed_per_filter_config").get(name)
            if found is not None:
                return found
        return None


@dataclass(frozen=True)
class Subject:
    """One connection manager with an ext_proc filter for the sidecar."""

    root: Node
    manager: Manager
    ext_proc: Node

    @property
    def where(self) -> str:
        return f"listener {self.manager.listener}"

    @property
    def config(self) -> Node:
        found = self.ext_proc.get("typed_config")
        assert found is not None
        return found

    @cached_property
    def buffer(self) -> Node | None:
        """The last buffer filter before ext_proc."""
        filters = self.manager.filters()
        before = filters[: filters.index(self.ext_proc)]
        return next(iter(reversed(of_kind(before, BUFFER))), None)

    @cached_property
    def routes(self) -> list[Route]:
        config = self.manager.node.get("route_config")
        return [
            Route(node, host, config)
            for host in self.manager.virtual_hosts()
            for node in host.list("routes")
            if config is not None
        ]

    @cached_property
    def with_ext_proc(self) -> list[Route]:
        """Routes whose requests the sidecar sees."""
        return [one for one in self.routes if self.has_ext_proc(one)]

    @cached_property
    def foreign(self) -> list[Route]:
        """Routes of other services whose requests the sidecar sees."""
        llm = [one for one in self.with_ext_proc if takes_llm_paths(one.node, _PREFIXES)]
        own = [one for one in llm if not is_catch_all(one.node)]
        models = {cluster_of(one.node) for one in (own or llm)} | set(self.target_clusters)
        return [
            one
            for one in self.with_ext_proc
            if not self.leads_to_target(one)
            and (one not in llm or (bool(own) and cluster_of(one.node) not in models))
            and _serves_requests(one.node)
            and not _is_llm_pattern(one.node)
        ]

    @cached_property
    def fallbacks(self) -> list[Route]:
        """Routes of LLM requests that have no decision, or none yet."""
        return [
            one
            for one in self.with_ext_proc
            if one not in self.foreign and not self.leads_to_target(one)
        ]

    @cached_property
    def targets(self) -> list[Route]:
        """Routes of LLM requests that have a decision."""
        return [one for one in self.routes if self.leads_to_target(one)]

    @cached_property
    def llm_routes(self) -> list[Route]:
        return [*self.targets, *self.fallbacks]

    @cached_property
    def target_clusters(self) -> dict[str, Node]:
        """Clusters that read the decision, or whose members read it, by name."""
        found: dict[str, Node] = {}
        for one in self.root.list("static_resources.clusters"):
            if reads_decision(one) or any(
                (member := cluster(self.root, name.text("name"))) is not None
                and reads_decision(member)
                for name in one.list("cluster_type.typed_config.clusters")
            ):
                found[one.text("name")] = one
        return found

    def has_ext_proc(self, route: Route) -> bool:
        """Return True if the filter is on for a route."""
        setting = route.setting(self.ext_proc.text("name"))
        if setting is not None:
            return setting.text("disabled") != "true"
        return self.ext_proc.text("disabled") != "true"

    def leads_to_target(self, route: Route) -> bool:
        return reads_target(route.node) or cluster_of(route.node) in self.target_clusters

    def modes(self, route: Route) -> Node | None:
        """Return the processing mode that applies to a route."""
        setting = route.setting(self.ext_proc.text("name"))
        own = setting.at("overrides.processing_mode") if setting is not None else None
        return own or self.config.get("processing_mode")

    def body_mode(self, route: Route) -> str:
        modes = self.modes(route)
        return (modes.text("request_body_mode") if modes else "") or "NONE"

    def buffers(self, route: Route) -> int:
        """Return the limit of the buffer filter in bytes, or 0 if the filter is off."""
        if self.buffer is None:
            return 0
        setting = route.setting(self.buffer.text("name"))
        if setting is not None:
            own = number(setting, "buffer.max_request_bytes", 0)
            return 0 if setting.text("disabled") == "true" else own
        if self.buffer.text("disabled") == "true":
            return 0
        return number(self.buffer, "typed_config.max_request_bytes", 0)

    def held(self, route: Route) -> int:
        """Return the bytes of a body that Envoy can buffer on a route."""
        listener = number(self.manager.place, "per_connection_buffer_limit_bytes", DEFAULT_BUFFER)
        return number(route.node, "request_body_buffer_limit", listener)

    @property
    def sidecar_cluster(self) -> str:
        return self.config.text("grpc_service.envoy_grpc.cluster_name")


_PREFIXES = ("",)


def subjects(root: Node) -> list[Subject]:
    """Return the connection managers with an ext_proc filter."""
    found = []
    for manager in managers(root):
        filters = of_kind(manager.filters(), EXT_PROC)
        ours = [one for one in filters if is_ours(one)] or filters
        found += [Subject(root, manager, ours[0])] if ours else []
    return found


def reads_decision(one: Node) -> bool:
    """Return True if a cluster takes its host from a header or metadata of the decision."""
    config = one.get("original_dst_lb_config")
    policies = one.get("load_balancing_policy")
    names = [node.value for part in (config, policies) if part is not None for node in _texts(part)]
    return any(name in ROUTING_HEADERS for name in names)


def headers_read(one: Node) -> set[str]:
    """Return the routing headers from which a cluster takes its host."""
    found = {one.text("original_dst_lb_config.http_header_name").lower()}
    sources = [node for node in walk(one) if isinstance(node, Sequence)]
    found |= {item.text("header").lower() for source in sources for item in source.items}
    return found & set(ROUTING_HEADERS)


def number(node: Node, path: str, default: int) -> int:
    text = node.text(path)
    return int(text) if text.isdecimal() else default


def seconds(text: str) -> float | None:
    """Return a duration in seconds, or None if the text is not a duration."""
    try:
        return float(text.removesuffix("s")) if text.endswith("s") else None
    except ValueError:
        return None


def _texts(node: Node) -> list[Scalar]:
    return [one for one in walk(node) if isinstance(one, Scalar)]


def _serves_requests(route: Node) -> bool:
    return route.get("match") is not None


def _is_llm_pattern(route: Node) -> bool:
    """Return True if the path condition is one of this project's own patterns."""
    return "tokenize" in route.text("match.safe_regex.regex")
