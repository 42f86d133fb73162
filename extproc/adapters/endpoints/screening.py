"""Addresses that never receive requests, even if discovery reports them.

Without this screen, anyone who can write an EndpointSlice could direct the gateway at its own
node, the cloud's metadata service or the API server (server-side request forgery). Kubernetes
refuses most of these addresses in slices, but not all.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection
from enum import StrEnum
from functools import lru_cache

IPAddress = ipaddress.IPv4Address | ipaddress.IPv6Address

KNOWN_ADDRESSES = 16_384
"""Addresses whose texts are read once: each change of an endpoint reads all of its source."""


class RejectionReason(StrEnum):
    """Reason why an address never receives requests."""

    NO_ADDRESS = "no_address"
    """Not an IP address; Envoy's original-destination cluster does not resolve names."""

    UNSPECIFIED = "unspecified"
    """`0.0.0.0` or `::`, which reach the node itself."""

    LOOPBACK = "loopback"
    """The node itself; allowed with `--allow-loopback`."""

    LINK_LOCAL = "link_local"
    """The node's own link, where most clouds have their metadata service."""

    METADATA = "metadata"
    """A cloud's metadata service whose address is not link-local."""

    MULTICAST = "multicast"
    """A group of servers instead of one."""

    RESERVED = "reserved"
    """`0.0.0.0/8` or `240.0.0.0/4`: no host has such an address."""

    API_SERVER = "api_server"
    """The API server's own address. In a pod that is the address of its Service."""

    UNDECLARED_PORT = "undeclared_port"
    """The EndpointSlice does not declare the configured port."""


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
    """Rejects addresses that must never receive requests.

    `api_server` has the API server's addresses, which are rejected on every port. On loopback only
    its own port is rejected, because in local work endpoints share the address.
    """

    def __init__(
        self, api_server: Collection[tuple[IPAddress, int]], *, allow_loopback: bool
    ) -> None:
        self._api_server = frozenset(api_server)
        self._api_server_ips = frozenset(ip for ip, _ in api_server if not ip.is_loopback)
        self._allow_loopback = allow_loopback
        self._judged = lru_cache(KNOWN_ADDRESSES)(self._judge)

    def rejection(self, address: str, port: int) -> RejectionReason | None:
        """Return the reason to reject an address; None if it may receive requests."""
        return self._judged(address, port)

    def _judge(self, address: str, port: int) -> RejectionReason | None:
        ip = parse_ip(address)
        if ip is None:
            return RejectionReason.NO_ADDRESS
        if reason := self._rejected_range(ip):
            return reason
        if ip in self._api_server_ips or (ip, port) in self._api_server:
            return RejectionReason.API_SERVER
        return None

    def _rejected_range(self, ip: IPAddress) -> RejectionReason | None:
        ranges = {
            RejectionReason.UNSPECIFIED: ip.is_unspecified,
            RejectionReason.LOOPBACK: ip.is_loopback and not self._allow_loopback,
            RejectionReason.LINK_LOCAL: ip.is_link_local,
            RejectionReason.METADATA: ip in _METADATA,
            RejectionReason.MULTICAST: ip.is_multicast,
            RejectionReason.RESERVED: _is_reserved(ip),
        }
        return next((reason for reason, applies in ranges.items() if applies), None)


def _is_reserved(ip: IPAddress) -> bool:
    # For IPv6 this covers other notations of an IPv4 address: `::a.b.c.d`, NAT64's and 6to4's.
    if ip.version == 4:
        return ip.is_reserved or ip.packed[0] == 0
    return (ip.is_reserved and not ip.is_loopback) or ip.sixtofour is not None


def parse_ip(address: str) -> IPAddress | None:
    """Return the IP address that a connection would use; None if the text is not one.

    An IPv4-mapped IPv6 address is returned as IPv4.
    """
    try:
        ip = ipaddress.ip_address(address)
    except ValueError:
        return None
    return (ip.version == 6 and ip.ipv4_mapped) or ip
