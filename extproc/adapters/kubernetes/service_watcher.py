"""Watches the EndpointSlices of Services."""

from __future__ import annotations

import asyncio
from random import Random
from time import monotonic

from extproc.adapters.endpoints.addresses import AddressesChanged
from extproc.adapters.endpoints.screening import Screen
from extproc.adapters.kubernetes.cluster import ClusterConnection
from extproc.adapters.kubernetes.endpoint_slices import read_slices
from extproc.adapters.kubernetes.reflector import WatchListener
from extproc.adapters.kubernetes.shared_slices import NamespaceSlices, Slices
from extproc.core.schema import ServiceSpec


class ServiceWatchers:
    """Makes the watchers of Services; those of one namespace share a watch."""

    def __init__(self, listener: WatchListener, rng: Random) -> None:
        self._listener = listener
        self._rng = rng
        self._namespaces: dict[str, NamespaceSlices] = {}

    def watcher(
        self, service: ServiceSpec, connection: ClusterConnection, changed: AddressesChanged
    ) -> ServiceWatcher:
        """Return the watcher of a Service."""
        namespace = self._namespaces.get(service.namespace)
        if namespace is None:
            namespace = self._namespaces[service.namespace] = NamespaceSlices(
                connection.api, service.namespace, self._listener, self._rng
            )
        return ServiceWatcher(service, namespace, connection.screen, changed)


class ServiceWatcher:
    """The watcher of one Service."""

    def __init__(
        self,
        service: ServiceSpec,
        namespace: NamespaceSlices,
        screen: Screen,
        changed: AddressesChanged,
    ) -> None:
        self._port = service.port
        self._screen = screen
        self._changed = changed
        self._namespace = namespace
        self._subscription = namespace.subscribe(service.name, self._take)
        self._created_at = monotonic()

    async def run(self) -> None:
        """Watch the Service until cancelled."""
        try:
            self._namespace.start()
            await asyncio.Event().wait()
        finally:
            await self._namespace.unsubscribe(self._subscription)

    async def wait_for_attempt(self) -> None:
        """Return after the first list with this Service, even if it failed."""
        await self._namespace.start().reflector.attempted.wait()

    @property
    def synced(self) -> bool:
        """True if the Service's slices were listed at least once."""
        return self._subscription.received is not None

    @property
    def trouble(self) -> str | None:
        """Reason why the slices are not current; None if they are."""
        watch = self._namespace.watch_of(self._subscription)
        return watch.reflector.trouble if watch else None

    @property
    def confirmed_at(self) -> float:
        """Monotonic time at which the slices were last known to be current; at first, the start."""
        watch = self._namespace.watch_of(self._subscription)
        return watch.reflector.confirmed_at if watch and self.synced else self._created_at

    def _take(self, slices: Slices) -> None:
        self._changed(read_slices(slices, self._port, self._screen))
