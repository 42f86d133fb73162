"""Follows one source of endpoints: the slices of a Service, or the pods of an InferencePool."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from random import Random
from typing import Protocol

from extproc.adapters.kubernetes.cluster import Connection
from extproc.adapters.kubernetes.endpoint_slices import Rejected, read_slices
from extproc.adapters.kubernetes.inference_pool import read_pods, selector
from extproc.adapters.kubernetes.objects import EndpointSlice, InferencePool, Pod
from extproc.adapters.kubernetes.reflector import Observer, Reflector, Resource
from extproc.adapters.kubernetes.selection import Found
from extproc.core.schema import InferencePoolSpec, KubernetesSource, ServiceSpec

Changed = Callable[[Iterable[Found | Rejected]], None]


class Follower(Protocol):
    """Keeps what is known of a source's endpoints."""

    async def run(self) -> None:
        """Follows for ever."""

    async def attempt(self) -> None:
        """Returns once there was a first answer, or a first failure."""

    @property
    def synced(self) -> bool:
        """Whether the endpoints were ever known."""

    @property
    def trouble(self) -> str | None:
        """Why they grow old; None while they do not."""

    @property
    def confirmed_at(self) -> float:
        """When they were last known to be current, by the monotonic clock."""


def follow(
    source: KubernetesSource,
    connection: Connection,
    changed: Changed,
    observer: Observer,
    rng: Random,
) -> Follower:
    """The follower of a source; `changed` is called with all that it finds, good or not."""
    if isinstance(source, ServiceSpec):
        return _ServiceFollower(source, connection, changed, observer, rng)
    return _PoolFollower(source, connection, changed, observer, rng)


class _ServiceFollower:
    def __init__(
        self,
        service: ServiceSpec,
        connection: Connection,
        changed: Changed,
        observer: Observer,
        rng: Random,
    ) -> None:
        self._slices = Reflector(
            connection.api,
            Resource(
                "endpointslices",
                f"/apis/discovery.k8s.io/v1/namespaces/{service.namespace}/endpointslices",
                EndpointSlice,
                label_selector=f"kubernetes.io/service-name={service.name}",
            ),
            lambda slices: changed(read_slices(slices.values(), service.port, connection.screen)),
            observer,
            rng,
        )

    async def run(self) -> None:
        await self._slices.run()

    async def attempt(self) -> None:
        await self._slices.attempted.wait()

    @property
    def synced(self) -> bool:
        return self._slices.synced

    @property
    def trouble(self) -> str | None:
        return self._slices.trouble

    @property
    def confirmed_at(self) -> float:
        return self._slices.confirmed_at


class _PoolFollower:
    """Two copies, the second by the selector that stands in the first.

    When the selector changes, the pods known so far stay until the new ones are listed.
    """

    def __init__(
        self,
        pool: InferencePoolSpec,
        connection: Connection,
        changed: Changed,
        observer: Observer,
        rng: Random,
    ) -> None:
        self._namespace = pool.namespace
        self._connection = connection
        self._changed = changed
        self._observer = observer
        self._rng = rng
        self._pool: InferencePool | None = None
        self._pods: Reflector[Pod] | None = None
        self._following: asyncio.Task[None] | None = None
        self._selector = ""
        self._known: Mapping[str, Pod] = {}
        group = "/apis/inference.networking.k8s.io/v1"
        self._pools = Reflector(
            connection.api,
            Resource(
                "inferencepools",
                f"{group}/namespaces/{pool.namespace}/inferencepools",
                InferencePool,
                field_selector=f"metadata.name={pool.name}",
            ),
            lambda pools: self._take_pool(next(iter(pools.values()), None)),
            observer,
            rng,
        )

    async def run(self) -> None:
        try:
            await self._pools.run()
        finally:
            await self._stop()

    async def attempt(self) -> None:
        await self._pools.attempted.wait()
        if self._pods is not None:
            await self._pods.attempted.wait()

    @property
    def synced(self) -> bool:
        return self._pools.synced and (self._pods is None or self._pods.synced)

    @property
    def trouble(self) -> str | None:
        return self._pools.trouble or (self._pods.trouble if self._pods else None)

    @property
    def confirmed_at(self) -> float:
        reflectors = (self._pools, self._pods)
        return min(reflector.confirmed_at for reflector in reflectors if reflector is not None)

    def _take_pool(self, pool: InferencePool | None) -> None:
        self._pool = pool
        wanted = selector(pool) if pool is not None else ""
        if wanted != self._selector or self._pods is None:
            self._selector = wanted
            self._follow_pods()
        if self._pods is None or self._pods.synced:
            self._publish()

    def _follow_pods(self) -> None:
        if self._following is not None:
            self._following.cancel()
        self._pods = self._following = None
        if not self._selector:
            self._known = {}
            return
        self._pods = Reflector(
            self._connection.api,
            Resource(
                "pods",
                f"/api/v1/namespaces/{self._namespace}/pods",
                Pod,
                label_selector=self._selector,
            ),
            self._take_pods,
            self._observer,
            self._rng,
        )
        self._following = asyncio.create_task(self._pods.run())

    def _take_pods(self, pods: Mapping[str, Pod]) -> None:
        self._known = pods
        self._publish()

    def _publish(self) -> None:
        pool = self._pool
        pods = (
            () if pool is None else read_pods(self._known.values(), pool, self._connection.screen)
        )
        self._changed(pods)

    async def _stop(self) -> None:
        if self._following is not None:
            self._following.cancel()
            with suppress(asyncio.CancelledError):
                await self._following
