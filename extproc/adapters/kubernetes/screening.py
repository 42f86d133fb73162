"""Addresses that are never routed to, whatever discovery says.

Who can write an EndpointSlice could otherwise turn the gateway against its own
node, the cloud's metadata service or the API server (server-side request forgery;
Kubernetes itself refuses most, but not all, of these in slices).
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection
from enum import StrEnum

IPAddress = ipaddress.IPv4Address | ipaddress.IPv6Address


class Refused(StrEnum):
    """Why an address is not routed to."""

    NO_ADDRESS = "no_address"
    """No IP address; Envoy's original-destination cluster resolves no names."""

    UNSPECIFIED = "unspecified"
    """`0.0.0.0` or `::`, which reach the node itself."""

    LOOPBACK = "loopback"
    """The node itself, unless `--allow-loopback` says otherwise."""

    LINK_LOCAL = "link_local"
    """The node's own link, where most clouds put their metadata service."""

    METADATA = "metadata"
    """A cloud's metadata service that is not link-local."""

    MULTICAST = "multicast"
    """No single server."""

    RESERVED = "reserved"
    """`0.0.0.0/8` or `240.0.0.0/4`: no host has such an address."""

    API_SERVER = "api_server"
    """The API server's own address, by which the sidecar knows it: in a pod that of the Service."""

    UNDECLARED_PORT = "undeclared_port"
    """The configured port is none of those that the EndpointSlice declares."""


_METADATA = frozenset(
    map(
        ipaddress.ip_address,
        (
            "fd00:ec2::254",  # AWS
            "fd20:ce::254",  # Google Cloud
            "168.63.129.16",  # Azure
            "100.100.100.200",  # Alibaba Cloud
            "192.0.0.192",  # Oracle Cloud
        ),
    )
)


class Screen:
    """Says of an address why it is refused.

    `api_server` are the API server's addresses, refused on every port; on loopback,
    which it may share with others in local work, only on its own.
    """

    def __init__(
        self, api_server: Collection[tuple[IPAddress, int]], *, allow_loopback: bool
    ) -> None:
        self._api_server = frozenset(api_server)
        self._api_server_ips = frozenset(ip for ip, _ in api_server if not ip.is_loopback)
        self._allow_loopback = allow_loopback

    def why_not(self, address: str, port: int) -> Refused | None:
        """The reason to refuse; None for an address that may be routed to."""
        ip = parse(address)
        if ip is None:
            return Refused.NO_ADDRESS
        if ip.is_unspecified:
            return Refused.UNSPECIFIED
        if ip.is_loopback and not self._allow_loopback:
            return Refused.LOOPBACK
        if ip.is_link_local:
            return Refused.LINK_LOCAL
        if ip in _METADATA:
            return Refused.METADATA
        if ip.is_multicast:
            return Refused.MULTICAST
        if _is_reserved(ip):
            return Refused.RESERVED
        if ip in self._api_server_ips or (ip, port) in self._api_server:
            return Refused.API_SERVER
        return None


def _is_reserved(ip: IPAddress) -> bool:
    # For IPv6 that covers the other ways to write an IPv4 address: `::a.b.c.d`, NAT64's, 6to4's.
    if ip.version == 4:
        return ip.is_reserved or ip.packed[0] == 0
    return (ip.is_reserved and not ip.is_loopback) or ip.sixtofour is not None


def parse(address: str) -> IPAddress | None:
    """The address that a connection would go to: an IPv4 one in IPv6's clothes is IPv4."""
    try:
        ip = ipaddress.ip_address(address)
    except ValueError:
        return None
    return (ip.version == 6 and ip.ipv4_mapped) or ip
