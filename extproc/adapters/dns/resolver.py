"""Looks up a host name once: in the hosts file, then in DNS.

`getaddrinfo` does both, but returns no TTL and blocks a thread without a time limit.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from extproc.adapters.dns.hosts import HostsFile
from extproc.adapters.dns.lookup import NameServer, Resolved, Unanswered

LOOKUP_SECONDS = 4.5
"""Limit of one lookup. A new configuration waits longer (discovery.SETTLE_SECONDS), so a name
server that does not respond cannot keep the addresses of other names from it."""

HOSTS_SECONDS = 5.0
"""TTL of an entry in the hosts file: container runtimes rewrite it."""


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
        # The library takes 80 ms to import, and lists of IP addresses do not need it.
        from extproc.adapters.dns.client import ask

        try:
            async with asyncio.timeout(self._seconds):
                return await ask(host, self._server, self._configuration)
        except TimeoutError:
            raise Unanswered(f"no response from DNS within {self._seconds:g} s") from None
