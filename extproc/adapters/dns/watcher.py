"""Watches the host names in a list of endpoints."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence

from extproc.adapters.dns.names import Names
from extproc.adapters.endpoints.addresses import (
    AddressesChanged,
    AddressState,
    FoundAddress,
    RejectedAddress,
)
from extproc.adapters.endpoints.screening import Screen
from extproc.core.schema import NamedEndpoints, has_host_name, split_address

# A models document may name a server on this machine, by host name as by address.
_SCREEN = Screen((), allow_loopback=True)


class NamesWatcher:
    """Keeps the endpoints of one list current.

    `changed` receives all of them, first when each name has been looked up once.
    """

    def __init__(self, source: NamedEndpoints, names: Names, changed: AddressesChanged) -> None:
        self._source = source
        self._changed = changed
        self._registry = names
        hosts = {split_address(one)[0] for one in source.endpoints if has_host_name(one)}
        self._names = {host: names.subscribe(host, self._publish) for host in sorted(hosts)}
        self._publish()

    async def run(self) -> None:
        """Watch until cancelled."""
        try:
            await asyncio.Event().wait()
        finally:
            for name in self._names.values():
                await self._registry.unsubscribe(name, self._publish)

    async def wait_for_attempt(self) -> None:
        """Return once each name was looked up, with any result."""
        for name in self._names.values():
            await name.attempted.wait()

    @property
    def synced(self) -> bool:
        """True if each name got a response or its waiting time is over."""
        return all(name.synced for name in self._names.values())

    @property
    def trouble(self) -> str | None:
        """First name without a response, and the reason; None if all got one."""
        for name in self._names.values():
            if not name.synced:
                return f"{name.host}: {name.trouble or 'waiting for DNS'}"
        return None

    @property
    def confirmed_at(self) -> float:
        """Monotonic time at which all names were last known to be current."""
        return min(name.confirmed_at for name in self._names.values())

    def _publish(self) -> None:
        if all(name.attempted.is_set() for name in self._names.values()):
            self._changed(found_addresses(self._source.endpoints, self._addresses))

    def _addresses(self, host: str) -> Sequence[str]:
        return self._names[host].addresses


def found_addresses(
    endpoints: Iterable[str], addresses: Callable[[str], Sequence[str]]
) -> Iterator[FoundAddress | RejectedAddress]:
    """Yield each address of a list; `addresses` returns those of a host name."""
    for endpoint in endpoints:
        host, port = split_address(endpoint)
        if not has_host_name(endpoint):
            yield FoundAddress(host, port, "", AddressState.READY)
            continue
        for address in addresses(host):
            reason = _SCREEN.rejection(address, port)
            yield (
                RejectedAddress(address, reason)
                if reason
                else FoundAddress(address, port, "", AddressState.READY)
            )
