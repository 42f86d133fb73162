"""The result of a lookup of a host name, and its errors."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NamedTuple


class NameServer(NamedTuple):
    """Address of a DNS server."""

    ip: str
    port: int


class Resolved(NamedTuple):
    """Addresses of a name, at least one."""

    addresses: tuple[str, ...]
    ttl: float
    """Seconds for which they are valid."""


class LookupFailed(Exception):
    """A lookup without addresses. The message is the same for the same cause."""


class NoAddresses(LookupFailed):
    """The name server responded: the name does not exist, or it has no addresses."""


class Unanswered(LookupFailed):
    """No name server gave a usable response, so nothing is known."""


Resolve = Callable[[str], Awaitable[Resolved]]
"""Looks a name up. Raises LookupFailed."""
