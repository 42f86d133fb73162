"""Piece 7: the clusters of the candidates, the fallback and the sidecar."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import Any

from extproc.envoy.addresses import addresses_of, cluster_type, lb_endpoints
from extproc.envoy.locate import cluster, clusters
from extproc.envoy.merge.plan import Plan, covers
from extproc.envoy.nodes import Mapping, Node, Sequence
from extproc.envoy.problems import ConfigurationError
from extproc.envoy.splice import add_entries, insert_items, replace_items, replace_value
from extproc.envoy.template import items_of
from extproc.envoy.tree import parse

DEFAULT_SIDECAR = "127.0.0.1:9002"
_DNS = "dns_lookup_family"


def add_clusters(text: str, plan: Plan) -> str:
    """Add the clusters that are missing and update the candidates'.

    Only the addresses of the fallback and of the sidecar's cluster are updated.
    """
    root = parse(text)
    wanted = items_of(plan.pieces.clusters)
    existing = {name: found for name in wanted if (found := cluster(root, name)) is not None}
    if plan.names.fallback not in existing and not plan.endpoints:
        raise ConfigurationError(
            "the fallback needs the model servers' addresses: give --endpoint HOST:PORT, or "
            "--models FILE with static endpoints"
        )
    data = {one["name"]: one for one in parse(plan.pieces.clusters).data()}
    up_to_date = all(_up_to_date(existing.get(name), data[name]) for name in _candidates(plan))
    if not up_to_date:
        # Write all three together: the first has an anchor that the others use.
        new = [*_candidates(plan), *(n for n in _others(plan) if n not in existing)]
    else:
        new = [name for name in _others(plan) if name not in existing]
    if new:
        text = _write(text, plan, {name: wanted[name] for name in new})
    text = with_addresses(text, plan.names.fallback, plan.endpoints)
    sidecar = plan.sidecar or ("" if plan.names.sidecar in existing else DEFAULT_SIDECAR)
    return with_addresses(text, plan.names.sidecar, (sidecar,) if sidecar else ())


def _candidates(plan: Plan) -> tuple[str, str, str]:
    return (plan.names.chosen, plan.names.first, plan.names.second)


def _others(plan: Plan) -> tuple[str, str]:
    return (plan.names.fallback, plan.names.sidecar)


def _up_to_date(existing: Node | None, wanted: dict[str, Any]) -> bool:
    return existing is not None and covers(existing.data(), wanted)


def _write(text: str, plan: Plan, items: dict[str, str]) -> str:
    block = "\n".join(_self_contained(items, plan))
    root = parse(text)
    sequence = root.at("static_resources.clusters")
    if not isinstance(sequence, Sequence):
        resources = root.get("static_resources")
        assert isinstance(resources, Mapping)
        return add_entries(text, resources, f"clusters:\n{block}")
    old = [i for i, one in enumerate(clusters(root)) if one.text("name") in items]
    if old:
        return replace_items(text, sequence, old, block)
    return insert_items(text, sequence, len(sequence.items), block)


def _self_contained(items: dict[str, str], plan: Plan) -> list[str]:
    """Return the items, with the shared circuit breakers written out in the first one."""
    first = next(iter(items))
    if first == plan.names.chosen:
        return list(items.values())
    whole = parse(plan.pieces.clusters)
    assert isinstance(whole, Sequence)
    breakers = whole.items[0].get("circuit_breakers")
    assert breakers is not None
    assert breakers.anchor
    spelled = plan.pieces.clusters[breakers.start : breakers.end]
    return [
        one.replace(f"*{breakers.anchor}", spelled, 1) if i == 0 else one
        for i, one in enumerate(items.values())
    ]


def with_addresses(text: str, name: str, addresses: Seq[str]) -> str:
    """Give a cluster these addresses, unless it has them in any order."""
    found = cluster(parse(text), name)
    if found is None or not addresses or sorted(addresses_of(found)) == sorted(addresses):
        return text
    if len(found.list("load_assignment.endpoints")) != 1:
        raise ConfigurationError(
            f"cluster {name} (line {found.line}) has no single list of endpoints to change: "
            "leave out --endpoint, --models and --sidecar, or change it by hand"
        )
    kind = found.get("type")
    wanted = cluster_type(addresses)
    if kind is not None and found.text("type") not in (wanted, "STRICT_DNS"):
        text = replace_value(text, kind, wanted)
    found = cluster(parse(text), name)
    if wanted == "STRICT_DNS" and isinstance(found, Mapping) and found.get(_DNS) is None:
        text = add_entries(text, found, f"{_DNS}: V4_PREFERRED\n", before="lb_policy")
    found = cluster(parse(text), name)
    assert found is not None
    endpoints = found.list("load_assignment.endpoints")[0].get("lb_endpoints")
    if not isinstance(endpoints, Sequence) or not endpoints.items:
        raise ConfigurationError(f"cluster {name} (line {found.line}) has no lb_endpoints")
    return replace_items(text, endpoints, range(len(endpoints.items)), lb_endpoints(addresses))
