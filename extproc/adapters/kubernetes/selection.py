"""From the addresses that discovery finds to the endpoints that may be routed to."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import IntEnum
from typing import NamedTuple

from extproc.adapters.kubernetes.screening import parse
from extproc.core.fleet.endpoint import Endpoint


class State(IntEnum):
    """What Kubernetes says of an address; a lower one is preferred."""

    READY = 0
    SERVING = 1
    """Terminating, but still answers: used only where nothing is ready."""
    UNREADY = 2
    GONE = 3
    """Terminating, and no longer answers."""

    @property
    def is_terminating(self) -> bool:
        """Whether the pod was told to go, which nothing takes back."""
        return self in (State.SERVING, State.GONE)


class Found(NamedTuple):
    """An address in an EndpointSlice or of a pod."""

    address: str
    port: int
    pod: str
    """NAMESPACE/POD; empty where nobody says."""
    state: State


def choose(found: Iterable[Found]) -> tuple[Endpoint, ...]:
    """The ready ones; if there are none, those that still serve; each pod once.

    A pod with an IPv4 and an IPv6 address is one endpoint: its cache and its load
    are one. Slices overlap while the controller moves endpoints between them.
    """
    states: dict[tuple[str, int, str], list[State]] = {}
    for address, port, pod, state in found:
        states.setdefault((address, port, pod), []).append(state)
    merged = [Found(*key, _agreed(those)) for key, those in states.items()]
    for state in (State.READY, State.SERVING):
        chosen = sorted((one for one in merged if one.state is state), key=_preference)
        if chosen:
            return tuple(_endpoints(chosen))
    return ()


def _agreed(states: list[State]) -> State:
    """Of slices that disagree, one that says terminating is the newer; else the best counts."""
    return max((s for s in states if s.is_terminating), default=min(states))


def _preference(one: Found) -> tuple[bool, bool, Found]:
    return ":" in one.address, not one.pod, one


def _endpoints(chosen: list[Found]) -> Iterator[Endpoint]:
    ports: dict[str, set[int]] = {}
    for one in chosen:
        ports.setdefault(one.pod, set()).add(one.port)
    seen: set[str] = set()
    for one in chosen:
        address = _ip_port(one.address, one.port)
        name = one.pod or address
        if one.pod and len(ports[one.pod]) > 1:
            # One pod, several servers (data parallel ranks): each is an endpoint.
            name = f"{one.pod}:{one.port}"
        if not seen & {name, address}:
            seen |= {name, address}
            yield Endpoint(address, name)


def _ip_port(address: str, port: int) -> str:
    ip = parse(address)
    return f"[{ip}]:{port}" if ip is not None and ip.version == 6 else f"{ip}:{port}"
