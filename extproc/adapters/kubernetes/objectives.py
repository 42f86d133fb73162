"""Reads the InferenceObjectives of pools, whose priorities flow control uses."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from random import Random

from extproc.adapters.kubernetes.cluster import Cluster
from extproc.adapters.kubernetes.objects import InferenceObjective
from extproc.adapters.kubernetes.reflector import Reflector, WatchListener
from extproc.adapters.kubernetes.resource import Resource
from extproc.core.routing.catalog import Catalog

Priorities = Mapping[str, Mapping[str, int]]
"""Priorities by model and by the name of the objective."""

_GROUP = "/apis/inference.networking.x-k8s.io/v1alpha2"


class Objectives:
    """A reflector for each namespace with pools of models with flow control.

    `changed` gets all priorities after each change.
    """

    def __init__(
        self,
        cluster: Cluster,
        changed: Callable[[Priorities], None],
        listener: WatchListener,
        rng: Random,
    ) -> None:
        self._cluster = cluster
        self._changed = changed
        self._listener = listener
        self._rng = rng
        self._catalog = Catalog()
        self._known: dict[str, Mapping[str, InferenceObjective]] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def set_models(self, catalog: Catalog) -> None:
        """Read the objectives that the models of this catalog need, and no others."""
        self._catalog = catalog
        wanted = {
            model.spec.inference_pool.namespace
            for model in catalog.models.values()
            if model.spec.inference_pool is not None and model.spec.flow_control is not None
        }
        for namespace in self._tasks.keys() - wanted:
            self._tasks.pop(namespace).cancel()
            self._known.pop(namespace, None)
        for namespace in wanted - self._tasks.keys():
            self._tasks[namespace] = asyncio.create_task(self._watch(namespace))
        if wanted:
            self._publish()

    async def close(self) -> None:
        """Stop watching."""
        for task in self._tasks.values():
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks.values())

    async def _watch(self, namespace: str) -> None:
        connection = await self._cluster.connection()

        def take(objectives: Mapping[str, InferenceObjective]) -> None:
            self._known[namespace] = objectives
            self._publish()

        resource = Resource(
            "inferenceobjectives",
            f"{_GROUP}/namespaces/{namespace}/inferenceobjectives",
            InferenceObjective,
        )
        await Reflector(connection.api, resource, take, self._listener, self._rng).run()

    def _publish(self) -> None:
        found: dict[str, dict[str, int]] = {}
        for name, model in self._catalog.models.items():
            pool = model.spec.inference_pool
            if pool is not None:
                found[name] = {
                    objective: one.spec.priority
                    for objective, one in self._known.get(pool.namespace, {}).items()
                    if one.spec.pool_ref.name == pool.name
                }
        self._changed(found)
