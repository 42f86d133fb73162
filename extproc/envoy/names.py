"""Names of the clusters and filters that this project adds to a configuration."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace

from extproc.envoy.locate import (
    BUFFER,
    Manager,
    cluster,
    cluster_of,
    is_a,
    managers,
    reads_target,
    sidecar_filter,
)
from extproc.envoy.nodes import Node
from extproc.envoy.problems import ConfigurationError

PREFIX = "llm-"
"""Prefix of a name that the user's configuration uses for something else."""


@dataclass(frozen=True)
class Names:
    """Names as in the recommended configuration, if the user's configuration does not use them."""

    sidecar: str = "extproc"
    chosen: str = "chosen"
    first: str = "first-candidate"
    second: str = "second-candidate"
    fallback: str = "fallback"
    buffer: str = "envoy.filters.http.buffer"
    ext_proc: str = "envoy.filters.http.ext_proc"

    def clusters(self) -> tuple[str, ...]:
        return (self.chosen, self.first, self.second, self.fallback, self.sidecar)

    def renamed(self) -> dict[str, str]:
        """Map recommended names to the names that replace them."""
        mine = {one.name: str(one.default) for one in fields(self)}
        pairs = {default: str(getattr(self, key)) for key, default in mine.items()}
        return {default: name for default, name in pairs.items() if default != name}


def names_in(root: Node) -> Names:
    """Return the names of existing pieces, and unused names for missing ones.

    Raises ConfigurationError if every candidate names something else.
    """
    found: dict[str, str] = {}
    for manager in managers(root):
        found = {**_of_filters(manager), **found}
    for manager in managers(root):
        found = {**_of_routes(manager, found.get("ext_proc", Names.ext_proc)), **found}
    found = {**_of_candidates(root, found.get("chosen", Names.chosen)), **found}
    found = {key: name for key, name in found.items() if name}
    names = replace(Names(), **found)
    for key, taken in (*_taken_clusters(root), *_taken_filters(root)):
        if key not in found:
            names = replace(names, **{key: _free(getattr(names, key), taken)})
    return names


def _of_filters(manager: Manager) -> dict[str, str]:
    """Return the names of our filters. A buffer directly before ext_proc is ours."""
    ours = sidecar_filter(manager)
    if ours is None:
        return {}
    filters = manager.filters()
    before = filters[max(0, filters.index(ours) - 1)]
    buffer = {"buffer": before.text("name")} if is_a(before, BUFFER) else {}
    sidecar = ours.text("typed_config.grpc_service.envoy_grpc.cluster_name")
    return {"ext_proc": ours.text("name"), **({"sidecar": sidecar} if sidecar else {}), **buffer}


def _of_routes(manager: Manager, ext_proc: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for host in manager.virtual_hosts():
        for route in host.list("routes"):
            if cluster_of(route) and reads_target(route):
                found.setdefault("chosen", cluster_of(route))
            elif cluster_of(route) and ext_proc in route.entries_at("typed_per_filter_config"):
                found.setdefault("fallback", cluster_of(route))
    return found


def _of_candidates(root: Node, chosen: str) -> dict[str, str]:
    """Return the clusters of the candidates. The header that they read identifies them."""
    found: dict[str, str] = {}
    composite = cluster(root, chosen)
    if composite is None:
        return found
    members = [one.text("name") for one in composite.list("cluster_type.typed_config.clusters")]
    if len(members) == 2:
        found = {"chosen": chosen, "first": members[0], "second": members[1]}
    elif _reads_header(composite):
        found = {"chosen": chosen}
    return found


def _reads_header(one: Node) -> bool:
    return one.text("original_dst_lb_config.http_header_name").startswith("x-target-endpoint")


def _taken_clusters(root: Node) -> Iterator[tuple[str, set[str]]]:
    taken = {
        one.text("name") for one in root.list("static_resources.clusters") if not _reads_header(one)
    }
    for key in ("sidecar", "chosen", "first", "second", "fallback"):
        yield key, taken


def _taken_filters(root: Node) -> Iterator[tuple[str, set[str]]]:
    taken = {one.text("name") for manager in managers(root) for one in manager.filters()}
    yield "buffer", taken
    yield "ext_proc", taken


def _free(name: str, taken: set[str]) -> str:
    candidate = name
    if candidate in taken:
        candidate = PREFIX + name
    if candidate in taken:
        raise ConfigurationError(
            f"{name!r} and {candidate!r} are both in use for something else: rename one of them"
        )
    return candidate
