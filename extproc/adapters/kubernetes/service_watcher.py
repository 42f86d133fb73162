"""Watches the EndpointSlices of a Service."""

from __future__ import annotations

from random import Random

from extproc.adapters.endpoints.addresses import AddressesChanged
from extproc.adapters.kubernetes.cluster import ClusterConnection
from extproc.adapters.kubernetes.endpoint_slices import read_slices
from extproc.adapters.kubernetes.objects import EndpointSlice
from extproc.adapters.kubernetes.reflector import Reflector, WatchListener
from extproc.adapters.kubernetes.resource import Resource
from extproc.core.schema import ServiceSpec


def service_watcher(
    service: ServiceSpec,
    connection: ClusterConnection,
    changed: AddressesChanged,
    listener: WatchListener,
    rng: Random,
) -> Reflector[EndpointSlice]:
    """Return the watcher of a Service, which is a reflector of its slices."""
    return Reflector(
        connection.api,
        Resource(
            "endpointslices",
            f"/apis/discovery.k8s.io/v1/namespaces/{service.namespace}/endpointslices",
            EndpointSlice,
            label_selector=f"kubernetes.io/service-name={service.name}",
        ),
        lambda slices: changed(read_slices(slices.values(), service.port, connection.screen)),
        listener,
        rng,
    )
