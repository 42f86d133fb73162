"""Reads the EndpointSlices of a Service (discovery.k8s.io/v1)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from extproc.adapters.endpoints.addresses import AddressState, FoundAddress, RejectedAddress
from extproc.adapters.endpoints.screening import RejectionReason, Screen
from extproc.adapters.kubernetes.objects import (
    EndpointConditions,
    EndpointSlice,
    SliceEndpoint,
)


def read_slices(
    slices: Iterable[EndpointSlice], port: str | int, screen: Screen
) -> Iterator[FoundAddress | RejectedAddress]:
    """Yield every address of the slices, on the port that a slice declares by name or number.

    Slices of one Service may have different numbers for one name, while a rollout changes it.
    """
    for one in slices:
        number = _number(one, port)
        for endpoint in one.endpoints:
            # The API defines no meaning for further addresses.
            for address in endpoint.addresses[:1]:
                if number is None:
                    yield RejectedAddress(address, RejectionReason.UNDECLARED_PORT)
                elif reason := screen.rejection(address, number):
                    yield RejectedAddress(address, reason)
                else:
                    yield FoundAddress(address, number, _pod(endpoint, one), _state(endpoint))


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


def _state(endpoint: SliceEndpoint) -> AddressState:
    conditions = endpoint.conditions or EndpointConditions()
    # By the API, a missing `ready` is true, and a missing `serving` equals `ready`.
    ready = conditions.ready is not False
    serving = ready if conditions.serving is None else conditions.serving
    if conditions.terminating:
        return AddressState.SERVING if serving else AddressState.GONE
    # A Service with publishNotReadyAddresses reports all its endpoints as ready.
    return AddressState.READY if ready and serving else AddressState.UNREADY
