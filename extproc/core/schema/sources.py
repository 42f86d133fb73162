"""Sources of discovered endpoints: `service`, `inferencePool`, host names in `endpoints`."""

from __future__ import annotations

from dataclasses import dataclass

from extproc.core.schema.values import KubernetesName, ServicePort, Spec


class ServiceSpec(Spec):
    """A Kubernetes Service whose EndpointSlices list the endpoints."""

    namespace: KubernetesName
    """The Service's namespace."""

    name: KubernetesName
    """The Service's name."""

    port: ServicePort
    """The port's name, or the number on which the pods listen, as in the EndpointSlices."""

    def __str__(self) -> str:
        return f"service {self.namespace}/{self.name}"


class InferencePoolSpec(Spec):
    """An InferencePool of the Gateway API, whose selector finds the pods."""

    namespace: KubernetesName
    """The namespace of the pool and its pods."""

    name: KubernetesName
    """The pool's name."""

    def __str__(self) -> str:
        return f"InferencePool {self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class NamedEndpoints:
    """A list of endpoints with one or more host names."""

    endpoints: tuple[str, ...]
    """IP:PORT and HOST:PORT, in the document's order."""

    def __str__(self) -> str:
        others = len(self.endpoints) - 1
        return f"endpoints {self.endpoints[0]}{f' and {others} more' if others else ''}"


KubernetesSource = ServiceSpec | InferencePoolSpec
"""A source in a Kubernetes cluster."""

Source = KubernetesSource | NamedEndpoints
"""A source of endpoints. Models with equal sources share one discovery."""
