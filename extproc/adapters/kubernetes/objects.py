"""The fields of Kubernetes objects that the sidecar reads.

The kubernetes client's own classes refuse an object with an unknown field, as an API server newer
than the client sends it. These classes skip unknown fields and, by the API's conventions, treat
null as absent.
"""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from pydantic.alias_generators import to_camel

Json = dict[str, Any]

Item = TypeVar("Item")


def _or_empty_list(value: Any) -> Any:
    return () if value is None else value


def _or_empty_map(value: Any) -> Any:
    return {} if value is None else value


Items = Annotated[tuple[Item, ...], BeforeValidator(_or_empty_list)]
Strings = Annotated[dict[str, str], BeforeValidator(_or_empty_map)]


class _Object(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, frozen=True)


class Metadata(_Object):
    """Metadata of any object."""

    name: str
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    labels: Strings = {}
    deletion_timestamp: str | None = None


class KubernetesObject(_Object):
    """An object with metadata."""

    metadata: Metadata


class EndpointConditions(_Object):
    """Conditions of an endpoint; by the API, a missing `ready` is true."""

    ready: bool | None = None
    serving: bool | None = None
    terminating: bool | None = None


class ObjectReference(_Object):
    kind: str = ""
    namespace: str = ""
    name: str = ""


class SliceEndpoint(_Object):
    addresses: Items[str] = ()
    conditions: EndpointConditions | None = None
    target_ref: ObjectReference | None = None


class SlicePort(_Object):
    name: str | None = None
    port: int | None = None
    protocol: str | None = None


class EndpointSlice(KubernetesObject):
    """discovery.k8s.io/v1."""

    address_type: str = ""
    endpoints: Items[SliceEndpoint] = ()
    ports: Items[SlicePort] = ()


class PodCondition(_Object):
    type: str
    status: str


class PodStatus(_Object):
    phase: str = ""
    pod_ip: str | None = Field(default=None, alias="podIP")
    conditions: Items[PodCondition] = ()


class Pod(KubernetesObject):
    status: PodStatus = PodStatus()


class PoolSelector(_Object):
    match_labels: Strings = {}


class PoolPort(_Object):
    number: int


class PoolSpec(_Object):
    selector: PoolSelector = PoolSelector()
    target_ports: Items[PoolPort] = ()


class InferencePool(KubernetesObject):
    """inference.networking.k8s.io/v1."""

    spec: PoolSpec = PoolSpec()


class PoolReference(_Object):
    """The pool of an objective."""

    name: str = ""


class ObjectiveSpec(_Object):
    """The priority of requests that name an objective; by the API, a missing one is 0."""

    priority: int = 0
    pool_ref: PoolReference = PoolReference()


class InferenceObjective(KubernetesObject):
    """inference.networking.x-k8s.io/v1alpha2."""

    spec: ObjectiveSpec = ObjectiveSpec()


class ConfigMap(KubernetesObject):
    data: Strings = {}
