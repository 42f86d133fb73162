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
    states: dict[tuple[str, int, str], list[AddressState]] = {}
    for address, port, pod, state in found:
        states.setdefault((address, port, pod), []).append(state)
    merged = [FoundAddress(*key, _merged_state(those)) for key, those in states.items()]
    for state in (AddressState.READY, AddressState.SERVING):
        selected = sorted((one for one in merged if one.state is state), key=_preference)
        if selected:
            return tuple(_endpoints(selected))
    return ()


def _merged_state(states: list[AddressState]) -> AddressState:
    """Return one state for an address whose slices disagree.

    A terminating state is newer than the others; otherwise the preferred state counts.
    """
    if len(states) == 1:  # nearly always, and there may be thousands
        return states[0]
    return max((s for s in states if s.is_terminating), default=min(states))


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
            yield Endpoint(address, name)


@lru_cache(KNOWN_ADDRESSES)
def _ip_port(address: str, port: int) -> str:
    ip = parse_ip(address)
    return f"[{ip}]:{port}" if ip is not None and ip.version == 6 else f"{ip}:{port}"
