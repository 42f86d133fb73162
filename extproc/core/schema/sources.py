"""Where endpoints are discovered: `service`, `inferencePool`, host names in `endpoints`."""

from __future__ import annotations

from dataclasses import dataclass

from extproc.core.schema.values import KubernetesName, ServicePort, Spec


class ServiceSpec(Spec):
    """A Kubernetes Service whose EndpointSlices list the endpoints."""

    namespace: KubernetesName
    """Of the Service."""

    name: KubernetesName
    """Of the Service."""

    port: ServicePort
    """The port's name, or the number at which the pods listen: what the EndpointSlices declare."""

    def __str__(self) -> str:
        return f"service {self.namespace}/{self.name}"


class InferencePoolSpec(Spec):
    """An InferencePool of the Gateway API, whose selector finds the pods."""

    namespace: KubernetesName
    """Of the pool and of its pods."""

    name: KubernetesName
    """Of the pool."""

    def __str__(self) -> str:
        return f"InferencePool {self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class NamedEndpoints:
    """A list of endpoints in which at least one address is a host name."""

    endpoints: tuple[str, ...]
    """IP:PORT and HOST:PORT, in the document's order."""

    def __str__(self) -> str:
        others = len(self.endpoints) - 1
        return f"endpoints {self.endpoints[0]}{f' and {others} more' if others else ''}"


KubernetesSource = ServiceSpec | InferencePoolSpec
"""A source that only the API server of a cluster knows."""

Source = KubernetesSource | NamedEndpoints
"""Where endpoints are discovered; equal sources are one, whichever models use them."""
