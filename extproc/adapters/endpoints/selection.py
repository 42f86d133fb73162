"""Selects the endpoints that receive requests from the addresses that discovery found."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache

from extproc.adapters.endpoints.addresses import AddressState, FoundAddress
from extproc.adapters.endpoints.screening import KNOWN_ADDRESSES, parse_ip
from extproc.core.fleet.endpoint import Endpoint


def select_endpoints(found: Iterable[FoundAddress]) -> tuple[Endpoint, ...]:
    """Return the ready endpoints, or those that still serve if none is ready; each pod once.

    A pod with an IPv4 and an IPv6 address is one endpoint, because it has one cache and one load.
    An address can appear several times: slices overlap while the controller moves endpoints.
    """
    merged: dict[tuple[str, int, str], FoundAddress] = {}
    for one in found:
        place = one[:3]
        before = merged.get(place)
        if before is not None:
            one = one._replace(state=_merged_state(before.state, one.state))
        merged[place] = one
    for state in (AddressState.READY, AddressState.SERVING):
        selected = [one for one in merged.values() if one.state is state]
        if selected:
            return tuple(_endpoints(sorted(selected, key=_preference)))
    return ()


def _merged_state(one: AddressState, other: AddressState) -> AddressState:
    """Return one state for an address whose slices disagree.

    A terminating state is newer than the others; otherwise the preferred state counts.
    """
    return max((s for s in (one, other) if s.is_terminating), default=min(one, other))


def _preference(one: FoundAddress) -> tuple[bool, bool, FoundAddress]:
    return ":" in one.address, not one.pod, one


def _endpoints(selected: list[FoundAddress]) -> Iterator[Endpoint]:
    ports: dict[str, set[int]] = {}
    for one in selected:
        ports.setdefault(one.pod, set()).add(one.port)
    seen: set[str] = set()
    for one in selected:
        address = _ip_port(one.address, one.port)
        name = one.pod or address
        if one.pod and len(ports[one.pod]) > 1:
            # One pod with several servers (data parallel ranks): each is an endpoint.
            name = f"{one.pod}:{one.port}"
        if not seen & {name, address}:
            seen |= {name, address}
            yield _endpoint(address, name)


# The same objects for the same endpoints, so that it takes little time to compare them.
@lru_cache(KNOWN_ADDRESSES)
def _endpoint(address: str, name: str) -> Endpoint:
    return Endpoint(address, name)


@lru_cache(KNOWN_ADDRESSES)
def _ip_port(address: str, port: int) -> str:
    ip = parse_ip(address)
    return f"[{ip}]:{port}" if ip is not None and ip.version == 6 else f"{ip}:{port}"
