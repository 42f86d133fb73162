"""The resources of the stand-in API server, and their paths."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from extproc.lab.api_server.errors import ApiError, bad_request, no_such_path
from extproc.lab.api_server.selectors import exact, field_selector


@dataclass(frozen=True, eq=False)
class Resource:
    """A kind of object."""

    group: str
    """The API group; empty for the core group."""

    version: str
    plural: str
    kind: str
    short_names: tuple[str, ...] = ()
    namespaced: bool = True

    custom: bool = False
    """True for a custom resource, which a real server treats differently."""

    @property
    def api_version(self) -> str:
        """The value of `apiVersion` in objects."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def type(self) -> dict[str, str]:
        """The fields `kind` and `apiVersion` of objects."""
        return {"kind": self.kind, "apiVersion": self.api_version}

    @property
    def qualified(self) -> str:
        """The plural with its group, for messages."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def qualified_kind(self) -> str:
        """The kind with its group, for messages about invalid objects."""
        return f"{self.kind}.{self.group}" if self.group else self.kind


NAMESPACES = Resource("", "v1", "namespaces", "Namespace", ("ns",), namespaced=False)
CONFIG_MAPS = Resource("", "v1", "configmaps", "ConfigMap", ("cm",))
EVENTS = Resource("", "v1", "events", "Event", ("ev",))
PODS = Resource("", "v1", "pods", "Pod", ("po",))
SERVICES = Resource("", "v1", "services", "Service", ("svc",))
ENDPOINT_SLICES = Resource("discovery.k8s.io", "v1", "endpointslices", "EndpointSlice")
INFERENCE_POOLS = Resource(
    "inference.networking.k8s.io",
    "v1",
    "inferencepools",
    "InferencePool",
    ("infpool",),
    custom=True,
)
INFERENCE_OBJECTIVES = Resource(
    "inference.networking.x-k8s.io",
    "v1alpha2",
    "inferenceobjectives",
    "InferenceObjective",
    ("infobj",),
    custom=True,
)

RESOURCES = (
    NAMESPACES,
    CONFIG_MAPS,
    EVENTS,
    PODS,
    SERVICES,
    ENDPOINT_SLICES,
    INFERENCE_POOLS,
    INFERENCE_OBJECTIVES,
)


def by_kind(kind: object) -> Resource:
    """Return the resource with this kind. Raises ApiError 400."""
    for resource in RESOURCES:
        if resource.kind == kind:
            return resource
    raise bad_request(f"no such kind here: {kind!r}")


def by_plural(plural: str) -> Resource:
    """Return the resource with this plural, which is unique here. Raises ApiError 400."""
    for resource in RESOURCES:
        if resource.plural == plural:
            return resource
    raise bad_request(f"no such resource here: {plural!r}")


@dataclass(frozen=True)
class Target:
    """The verb of a request, and the objects that it addresses."""

    verb: str
    resource: Resource
    namespace: str
    """The namespace; empty for all namespaces and for cluster-scoped resources."""

    name: str
    """The name from the path or the field selector; empty for all objects."""


def target_of(method: str, path: str, query: Mapping[str, str]) -> Target:
    """Return the target of a request. Raises ApiError 400, 404 or 405."""
    match path.strip("/").split("/"):
        case ["api", version, *rest]:
            resource, namespace, name = _addressed("", version, rest)
        case ["apis", group, version, *rest]:
            resource, namespace, name = _addressed(group, version, rest)
        case _:
            raise no_such_path()
    if method == "GET" and not name:
        verb = "watch" if query.get("watch") in ("1", "true") else "list"
        selected = exact(field_selector(query.get("fieldSelector", "")), "metadata.name")
        return Target(verb, resource, namespace, selected)
    verbs = _VERBS_OF_ONE if name else {"POST": "create"}
    if method not in verbs or bool(namespace) != resource.namespaced:
        message = "the server does not allow this method on the requested resource"
        raise ApiError(405, "MethodNotAllowed", message, {})
    return Target(verbs[method], resource, namespace, name)


_VERBS_OF_ONE = {"GET": "get", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}


def _addressed(group: str, version: str, path: Sequence[str]) -> tuple[Resource, str, str]:
    """Return the resource, the namespace and the name of a path below a version."""
    namespace = ""
    if len(path) > 2 and path[0] == "namespaces":
        namespace, path = path[1], path[2:]
    if len(path) in (1, 2):
        for resource in RESOURCES:
            known = (resource.group, resource.version, resource.plural)
            if known == (group, version, path[0]) and (resource.namespaced or not namespace):
                return resource, namespace, path[1] if len(path) == 2 else ""
    raise no_such_path()
