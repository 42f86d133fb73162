"""Where endpoints are discovered: `service`, `inferencePool`."""

from __future__ import annotations

from extproc.core.spec.values import KubernetesName, ServicePort, Spec


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


Source = ServiceSpec | InferencePoolSpec
"""Where endpoints are discovered; equal sources are one, whichever models use them."""
