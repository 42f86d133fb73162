"""The subset of a model's endpoints that a gateway allows for a request.

The endpoint picker protocol's hint: entries are IP:PORT, `[IP]:PORT` for IPv6; an
IP alone means all its ports. One text may hold several entries with commas between them.
Any other entry allows nothing, and an empty subset allows no endpoint: the gateway named
the endpoints that the request may go to, and none of them exists.
"""

from __future__ import annotations

import ipaddress
from functools import lru_cache
from typing import NamedTuple

_PORT_DIGITS = 5


class Subset(NamedTuple):
    """The allowed endpoints, by addresses and hosts in canonical form."""

    addresses: frozenset[str]
    hosts: frozenset[str]

    def allows(self, address: str) -> bool:
        """Return True if requests may go to this IP:PORT."""
        if address in self.addresses:
            return True
        return bool(self.hosts) and address.rpartition(":")[0] in self.hosts


# A gateway repeats a few lists, and each may be long.
@lru_cache(maxsize=64)
def subset_of(entries: tuple[str, ...]) -> Subset:
    """Return the subset that the entries of a hint allow."""
    addresses, hosts = set(), set()
    for entry in (part.strip() for text in entries for part in text.split(",")):
        host = _canonical_host(entry)
        if host is not None:
            hosts.add(host)
            continue
        name, _, port = entry.rpartition(":")
        host = _canonical_host(name)
        if host is not None and port.isascii() and port.isdigit() and len(port) <= _PORT_DIGITS:
            addresses.add(f"{host}:{int(port)}")
    return Subset(frozenset(addresses), frozenset(hosts))


def _canonical_host(text: str) -> str | None:
    """Return an IP in the form of endpoint addresses, IPv6 in brackets; None if it is no IP."""
    bracketed = text.startswith("[") and text.endswith("]")
    try:
        ip = ipaddress.ip_address(text[1:-1] if bracketed else text)
    except ValueError:
        return None
    if ip.version == 6:
        return f"[{ip}]"
    return None if bracketed else str(ip)
