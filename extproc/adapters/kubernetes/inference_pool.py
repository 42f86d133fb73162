"""Reads the pods of an InferencePool (inference.networking.k8s.io/v1)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from extproc.adapters.kubernetes.endpoint_slices import Rejected
from extproc.adapters.kubernetes.objects import InferencePool, Pod
from extproc.adapters.kubernetes.screening import Screen
from extproc.adapters.kubernetes.selection import Found, State


def selector(pool: InferencePool) -> str:
    """The pool's selector as the API's query parameter; empty where it selects nothing."""
    return ",".join(f"{k}={v}" for k, v in sorted(pool.spec.selector.match_labels.items()))


def read_pods(
    pods: Iterable[Pod], pool: InferencePool, screen: Screen
) -> Iterator[Found | Rejected]:
    """Every pod that has an address, on each of the pool's target ports."""
    for pod in pods:
        address = pod.status.pod_ip
        if not address:
            continue
        name = f"{pod.metadata.namespace}/{pod.metadata.name}"
        state = _state(pod)
        for port in pool.spec.target_ports:
            if reason := screen.why_not(address, port.number):
                yield Rejected(address, reason)
            else:
                yield Found(address, port.number, name, state)


def _state(pod: Pod) -> State:
    ready = pod.status.phase == "Running" and any(
        condition.type == "Ready" and condition.status == "True"
        for condition in pod.status.conditions
    )
    if pod.metadata.deletion_timestamp is None:
        return State.READY if ready else State.UNREADY
    return State.SERVING if ready else State.GONE
