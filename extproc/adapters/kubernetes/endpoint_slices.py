"""Reads a Service's EndpointSlices (discovery.k8s.io/v1)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from extproc.adapters.kubernetes.objects import (
    EndpointConditions,
    EndpointSlice,
    SliceEndpoint,
)
from extproc.adapters.kubernetes.screening import Refused, Screen
from extproc.adapters.kubernetes.selection import Found, State


class Rejected(NamedTuple):
    """An address that is not routed to, and why."""

    address: str
    reason: Refused


def read_slices(
    slices: Iterable[EndpointSlice], port: str | int, screen: Screen
) -> Iterator[Found | Rejected]:
    """Every address of the slices, on the port that the slice declares under this name or number.

    Names are the API's way: slices of one Service may have different numbers
    behind one name, while a rollout changes it.
    """
    for one in slices:
        number = _number(one, port)
        for endpoint in one.endpoints:
            # The API gives no meaning to addresses beyond the first.
            for address in endpoint.addresses[:1]:
                if number is None:
                    yield Rejected(address, Refused.UNDECLARED_PORT)
                elif reason := screen.why_not(address, number):
                    yield Rejected(address, reason)
                else:
                    yield Found(address, number, _pod(endpoint, one), _state(endpoint))


def _number(one: EndpointSlice, port: str | int) -> int | None:
    for declared in one.ports:
        if declared.protocol in (None, "TCP") and port in (declared.name, declared.port):
            return declared.port
    return None


def _pod(endpoint: SliceEndpoint, one: EndpointSlice) -> str:
    target = endpoint.target_ref
    if target is None or target.kind != "Pod" or not target.name:
        return ""
    return f"{target.namespace or one.metadata.namespace}/{target.name}"


def _state(endpoint: SliceEndpoint) -> State:
    conditions = endpoint.conditions or EndpointConditions()
    # Who does not say `ready` means true; who does not say `serving` means what `ready` says.
    ready = conditions.ready is not False
    if not conditions.terminating:
        return State.READY if ready else State.UNREADY
    serving = ready if conditions.serving is None else conditions.serving
    return State.SERVING if serving else State.GONE
