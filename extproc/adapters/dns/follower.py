"""Follows a list of endpoints in which host names stand."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence

from extproc.adapters.dns.names import Names
from extproc.adapters.kubernetes.endpoint_slices import Rejected
from extproc.adapters.kubernetes.screening import Screen
from extproc.adapters.kubernetes.selection import Found, State
from extproc.core.schema import NamedEndpoints, has_host_name, split_address

Changed = Callable[[Iterable[Found | Rejected]], None]

# The author of the document may name a server on this machine, by name as by address.
_SCREEN = Screen((), allow_loopback=True)


class NamesFollower:
    """Keeps the endpoints of one list; `changed` gets all of them once each name was looked up."""

    def __init__(self, source: NamedEndpoints, names: Names, changed: Changed) -> None:
        self._source = source
        self._changed = changed
        self._registry = names
        hosts = {split_address(one)[0] for one in source.endpoints if has_host_name(one)}
        self._names = {host: names.follow(host, self._publish) for host in sorted(hosts)}
        self._publish()

    async def run(self) -> None:
        """Follow until cancelled."""
        try:
            await asyncio.Event().wait()
        finally:
            for name in self._names.values():
                await self._registry.leave(name, self._publish)

    async def attempt(self) -> None:
        """Return once each name was looked up, with any result."""
        for name in self._names.values():
            await name.attempted.wait()

    @property
    def synced(self) -> bool:
        """Whether each name got a response, or was waited for long enough."""
        return all(name.synced for name in self._names.values())

    @property
    def trouble(self) -> str | None:
        """The first name without a response, and why; None if all got one."""
        for name in self._names.values():
            if not name.synced:
                return f"{name.host}: {name.trouble or 'waiting for DNS'}"
        return None

    @property
    def confirmed_at(self) -> float:
        """When all names were last known to be current, by the monotonic clock."""
        return min(name.confirmed_at for name in self._names.values())

    def _publish(self) -> None:
        if all(name.attempted.is_set() for name in self._names.values()):
            self._changed(found(self._source.endpoints, self._addresses))

    def _addresses(self, host: str) -> Sequence[str]:
        return self._names[host].addresses


def found(
    endpoints: Iterable[str], addresses: Callable[[str], Sequence[str]]
) -> Iterator[Found | Rejected]:
    """Yield each address of a list; `addresses` gives those of a host name."""
    for endpoint in endpoints:
        host, port = split_address(endpoint)
        if not has_host_name(endpoint):
            yield Found(host, port, "", State.READY)
            continue
        for address in addresses(host):
            reason = _SCREEN.why_not(address, port)
            yield Rejected(address, reason) if reason else Found(address, port, "", State.READY)
