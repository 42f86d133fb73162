"""Reads the pods of an InferencePool (inference.networking.k8s.io/v1)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from extproc.adapters.endpoints.addresses import AddressState, FoundAddress, RejectedAddress
from extproc.adapters.endpoints.screening import Screen
from extproc.adapters.kubernetes.objects import InferencePool, Pod


def selector(pool: InferencePool) -> str:
    """Return the pool's selector as a query parameter; empty if it selects nothing."""
    return ",".join(f"{k}={v}" for k, v in sorted(pool.spec.selector.match_labels.items()))


def read_pods(
    pods: Iterable[Pod], pool: InferencePool, screen: Screen
) -> Iterator[FoundAddress | RejectedAddress]:
    """Yield the address of every pod that has one, on each of the pool's target ports."""
    for pod in pods:
        address = pod.status.pod_ip
        if not address:
            continue
        name = f"{pod.metadata.namespace}/{pod.metadata.name}"
        state = _state(pod)
        for port in pool.spec.target_ports:
            if reason := screen.rejection(address, port.number):
                yield RejectedAddress(address, reason)
            else:
                yield FoundAddress(address, port.number, name, state)


def _state(pod: Pod) -> AddressState:
    ready = pod.status.phase == "Running" and any(
        condition.type == "Ready" and condition.status == "True"
        for condition in pod.status.conditions
    )
    if pod.metadata.deletion_timestamp is None:
        return AddressState.READY if ready else AddressState.UNREADY
    return AddressState.SERVING if ready else AddressState.GONE
