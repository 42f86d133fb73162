"""The few fields of Kubernetes objects that are read here.

Not the kubernetes client's own classes: those refuse an object with a field they
do not know, and an API server newer than the client sends such objects. Here
what is not known is skipped, and null means absent, as the API's conventions say.
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
    """What all objects carry."""

    name: str
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    deletion_timestamp: str | None = None


class KubernetesObject(_Object):
    """Any object."""

    metadata: Metadata


class EndpointConditions(_Object):
    """A missing `ready` is to be taken for true, says the API."""

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


class ConfigMap(KubernetesObject):
    data: Strings = {}
