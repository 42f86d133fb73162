"""Addresses of endpoints in the models document: IP:PORT or HOST:PORT."""

from __future__ import annotations

import ipaddress
import re

_MAX_HOST_LENGTH = 253
_MAX_LABEL_LENGTH = 63

# Docker names containers with underscores, which host names on the Internet may not have.
_LABEL = re.compile(r"[a-z0-9_]([-a-z0-9_]*[a-z0-9_])?")


def endpoint_address(text: str) -> str:
    """Return an endpoint's address in its canonical form.

    That is `IP:PORT`, `[IP]:PORT` for IPv6, or `HOST:PORT` in lower case. A trailing dot stays:
    it keeps the resolver from trying its search domains. Raises ValueError.
    """
    host, colon, port = text.rpartition(":")
    if "/" in text:
        raise ValueError(f"{text!r} is not HOST:PORT; leave out the scheme and the path")
    if not colon or text.endswith("]"):
        raise ValueError(f"{text!r} has no port; give IP:PORT or HOST:PORT")
    canonical = _ip(text, host) or _host_name(text, host)
    if not (port.isascii() and port.isdigit() and 0 < int(port) < 65536):
        raise ValueError(f"{text!r}: the port must be a number from 1 to 65535")
    return f"{canonical}:{int(port)}"


def split_address(address: str) -> tuple[str, int]:
    """Split a canonical address into its host or IP (without brackets) and its port."""
    host, _, port = address.rpartition(":")
    return host.removeprefix("[").removesuffix("]"), int(port)


def has_host_name(address: str) -> bool:
    """Return True if a canonical address is HOST:PORT, not IP:PORT."""
    host = address.rpartition(":")[0]
    return not host.endswith("]") and not host.rpartition(".")[2].isdigit()


def _ip(text: str, host: str) -> str | None:
    bracketed = host.startswith("[") and host.endswith("]")
    try:
        ip = ipaddress.ip_address(host[1:-1] if bracketed else host)
    except ValueError:
        if bracketed or ":" in host:
            raise ValueError(
                f"{text!r} is neither IP:PORT nor HOST:PORT; write IPv6 as [IP]:PORT"
            ) from None
        return None
    if bracketed != (ip.version == 6):
        raise ValueError(f"{text!r}: put an IPv6 address, and no other, in brackets")
    if ip.is_unspecified or ip.is_multicast:
        raise ValueError(f"{text!r}: {ip} is not the address of a server")
    return f"[{ip}]" if ip.version == 6 else str(ip)


def _host_name(text: str, host: str) -> str:
    name = host.lower()
    labels = name.removesuffix(".").split(".")
    # A name that ends in a number is a mistyped IPv4 address.
    ends_in_number = labels[-1].isdigit() or labels[-1].startswith("0x")
    well_formed = all(_LABEL.fullmatch(one) and len(one) <= _MAX_LABEL_LENGTH for one in labels)
    if ends_in_number or not well_formed or len(name) > _MAX_HOST_LENGTH:
        raise ValueError(f"{text!r}: {host!r} is neither an IP address nor a host name")
    return name
