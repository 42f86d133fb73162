"""Looks a host name up once: in the hosts file, then in DNS.

`getaddrinfo` would do both, but it returns no TTL, and it blocks a thread for as long as it likes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import NamedTuple

from extproc.adapters.dns.hosts import HostsFile

LOOKUP_SECONDS = 4.5
"""Limit of one lookup. A new configuration waits longer (discovery.SETTLE_SECONDS), so a name
server that does not respond cannot keep the addresses of other names from it."""

HOSTS_SECONDS = 5.0
"""TTL of an entry in the hosts file: container runtimes rewrite it."""


class NameServer(NamedTuple):
    """Address of a DNS server."""

    ip: str
    port: int


class Resolved(NamedTuple):
    """Addresses of a name, one at least."""

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


class Resolver:
    """Looks names up as the C library does with `hosts: files dns`.

    `server` replaces the name servers of `configuration`; its search domains stay.
    """

    def __init__(
        self,
        server: NameServer | None = None,
        *,
        hosts: Path = Path("/etc/hosts"),
        configuration: Path = Path("/etc/resolv.conf"),
        seconds: float = LOOKUP_SECONDS,
    ) -> None:
        self._server = server
        self._hosts = HostsFile(hosts)
        self._configuration = configuration
        self._seconds = seconds

    async def resolve(self, host: str) -> Resolved:
        """Look a name up. Raises LookupFailed."""
        listed = await asyncio.to_thread(self._hosts.addresses, host)
        if listed:
            return Resolved(listed, HOSTS_SECONDS)
        # The library takes 80 ms to import: lists of IP addresses do without.
        from extproc.adapters.dns.client import ask

        try:
            async with asyncio.timeout(self._seconds):
                return await ask(host, self._server, self._configuration)
        except TimeoutError:
            raise Unanswered(f"no response from DNS within {self._seconds:g} s") from None
