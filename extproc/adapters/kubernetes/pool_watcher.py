"""Watches the pods of an InferencePool."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from random import Random

from extproc.adapters.endpoints.addresses import AddressesChanged
from extproc.adapters.kubernetes.cluster import ClusterConnection
from extproc.adapters.kubernetes.inference_pool import read_pods, selector
from extproc.adapters.kubernetes.objects import InferencePool, Pod
from extproc.adapters.kubernetes.reflector import Reflector, WatchListener
from extproc.adapters.kubernetes.resource import Resource
from extproc.core.schema import InferencePoolSpec


class PoolWatcher:
    """Two reflectors: one of the pool, and one of the pods that the pool's selector matches.

    When the selector changes, the known pods stay until the new ones are listed.
    """

    def __init__(
        self,
        pool: InferencePoolSpec,
        connection: ClusterConnection,
        changed: AddressesChanged,
        listener: WatchListener,
        rng: Random,
    ) -> None:
        self._namespace = pool.namespace
        self._connection = connection
        self._changed = changed
        self._listener = listener
        self._rng = rng
        self._pool: InferencePool | None = None
        self._pods: Reflector[Pod] | None = None
        self._watching_pods: asyncio.Task[None] | None = None
        self._selector = ""
        self._known: Mapping[str, Pod] = {}
        self._pools = Reflector(
            connection.api,
            _pools(pool),
            lambda pools: self._take_pool(next(iter(pools.values()), None)),
            listener,
            rng,
        )

    async def run(self) -> None:
        """Watch the pool and its pods until cancelled."""
        try:
            await self._pools.run()
        finally:
            await self._stop()

    async def wait_for_attempt(self) -> None:
        """Return after the first list of the pool and, if there is a pool, of its pods."""
        await self._pools.attempted.wait()
        if self._pods is not None:
            await self._pods.attempted.wait()

    @property
    def synced(self) -> bool:
        """True if the pool was read, and its pods if it selects any."""
        return self._pools.synced and (self._pods is None or self._pods.synced)

    @property
    def trouble(self) -> str | None:
        """Reason why the pool or its pods are not current; None if they are."""
        return self._pools.trouble or (self._pods.trouble if self._pods else None)

    @property
    def confirmed_at(self) -> float:
        """Monotonic time at which both were last known to be current."""
        reflectors = (self._pools, self._pods)
        return min(reflector.confirmed_at for reflector in reflectors if reflector is not None)

    def _take_pool(self, pool: InferencePool | None) -> None:
        self._pool = pool
        wanted = selector(pool) if pool is not None else ""
        if wanted != self._selector or self._pods is None:
            self._selector = wanted
            self._watch_pods()
        if self._pods is None or self._pods.synced:
            self._publish()

    def _watch_pods(self) -> None:
        if self._watching_pods is not None:
            self._watching_pods.cancel()
        self._pods = self._watching_pods = None
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
            self._listener,
            self._rng,
        )
        self._watching_pods = asyncio.create_task(self._pods.run())

    def _take_pods(self, pods: Mapping[str, Pod]) -> None:
        self._known = pods
        self._publish()

    def _publish(self) -> None:
        if self._pool is None:
            self._changed(())
        else:
            self._changed(read_pods(self._known.values(), self._pool, self._connection.screen))

    async def _stop(self) -> None:
        if self._watching_pods is not None:
            self._watching_pods.cancel()
            with suppress(asyncio.CancelledError):
                await self._watching_pods


def _pools(pool: InferencePoolSpec) -> Resource[InferencePool]:
    group = "/apis/inference.networking.k8s.io/v1"
    return Resource(
        "inferencepools",
        f"{group}/namespaces/{pool.namespace}/inferencepools",
        InferencePool,
        field_selector=f"metadata.name={pool.name}",
    )
