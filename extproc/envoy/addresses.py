"""Addresses of endpoints and of the sidecar, as Envoy writes them."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence

from extproc.envoy.nodes import Node
from extproc.envoy.tree import scalar


def socket_address(address: str) -> str:
    """Return the value of `address` for HOST:PORT or unix:PATH, on one line."""
    if address.startswith("unix:"):
        return f"{{pipe: {{path: {scalar(address.removeprefix('unix:'))}}}}}"
    host, _, port = address.rpartition(":")
    host = scalar(host.strip("[]"))
    return f"{{socket_address: {{address: {host}, port_value: {port}}}}}"


def lb_endpoints(addresses: Sequence[str]) -> str:
    """Return the items of `lb_endpoints`, one for each line."""
    return "".join(f"- endpoint: {{address: {socket_address(one)}}}\n" for one in addresses)


def cluster_type(addresses: Sequence[str]) -> str:
    """Return the type of a cluster with these addresses. Host names need STRICT_DNS."""
    return "STATIC" if all(map(_is_literal, addresses)) else "STRICT_DNS"


def addresses_of(cluster: Node) -> list[str]:
    """Return the addresses of a cluster's endpoints, as HOST:PORT or unix:PATH."""
    found = []
    for locality in cluster.list("load_assignment.endpoints"):
        for one in locality.list("lb_endpoints"):
            address = one.at("endpoint.address")
            if address is not None and address.get("pipe") is not None:
                found.append("unix:" + address.text("pipe.path"))
            elif address is not None:
                host = address.text("socket_address.address")
                shown = f"[{host}]" if ":" in host else host
                found.append(f"{shown}:{address.text('socket_address.port_value')}")
    return found


def _is_literal(address: str) -> bool:
    if address.startswith("unix:"):
        return True
    try:
        ipaddress.ip_address(address.rpartition(":")[0].strip("[]"))
    except ValueError:
        return False
    return True
