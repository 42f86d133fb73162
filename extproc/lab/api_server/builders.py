"""Builders of Kubernetes objects, as a cluster would hold them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from extproc.lab.api_server.errors import Json


def endpoint_slice(
    service: str,
    namespace: str,
    name: str,
    addresses: Sequence[tuple[str, str, Mapping[str, bool]]],
    port: int = 8000,
    port_name: str = "http",
    address_type: str = "IPv4",
) -> Json:
    """Return an EndpointSlice; `addresses` has (address, pod name, conditions) of each endpoint.

    The endpoints of a slice share one port, so each replica on loopback needs a slice of its own.
    """
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": {"kubernetes.io/service-name": service},
        },
        "addressType": address_type,
        "endpoints": [
            {
                "addresses": [address],
                "conditions": dict(conditions),
                "targetRef": {"kind": "Pod", "name": pod_name, "namespace": namespace},
            }
            for address, pod_name, conditions in addresses
        ],
        "ports": [{"name": port_name, "port": port, "protocol": "TCP"}],
    }


def config_map(namespace: str, name: str, data: Mapping[str, str]) -> Json:
    """Return a ConfigMap."""
    metadata = {"name": name, "namespace": namespace}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": dict(data)}


def pod(
    namespace: str,
    name: str,
    labels: Mapping[str, str],
    ip: str,
    ready: bool = True,
    deleting: bool = False,
) -> Json:
    """Return a running Pod."""
    metadata: Json = {"name": name, "namespace": namespace, "labels": dict(labels)}
    if deleting:
        metadata["deletionTimestamp"] = "2026-01-01T00:00:30Z"
        metadata["deletionGracePeriodSeconds"] = 30
    status = {
        "phase": "Running",
        "conditions": [{"type": "Ready", "status": str(ready)}],
        "podIP": ip,
        "podIPs": [{"ip": ip}],
    }
    containers = [{"name": "vllm", "image": "vllm/vllm-openai"}]
    spec = {"containers": containers}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec, "status": status}


def inference_pool(
    namespace: str, name: str, selector: Mapping[str, str], ports: Sequence[int]
) -> Json:
    """Return an InferencePool of version v1."""
    return {
        "apiVersion": "inference.networking.k8s.io/v1",
        "kind": "InferencePool",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "selector": {"matchLabels": dict(selector)},
            "targetPorts": [{"number": port} for port in ports],
            "endpointPickerRef": {"name": f"{name}-epp", "port": {"number": 9002}},
        },
    }
