"""The priorities of InferenceObjectives reach the models of their pools."""

from __future__ import annotations

from collections.abc import AsyncIterator
from random import Random
from typing import Any

import pytest

from extproc.adapters.kubernetes.cluster import Cluster
from extproc.adapters.kubernetes.objectives import Objectives, Priorities
from extproc.core.routing.catalog import Catalog
from extproc.core.schema import ModelSpec
from extproc.lab.api_server.process import StandInApiServer
from tests.adapters.documents import eventually
from tests.core.builders import catalog


class Watched:
    """Objectives that a test reads."""

    def __init__(self, server: StandInApiServer, namespace: str) -> None:
        self.server = server
        self.namespace = namespace
        self.priorities: Priorities = {}
        self.cluster = Cluster(server.kubeconfig, allow_loopback=True)
        self.objectives = Objectives(self.cluster, self._changed, self, Random(0))

    def listed(self, resource: str, result: str) -> None:
        pass

    def watched(self, resource: str, result: str) -> None:
        pass

    async def put(self, name: str, priority: int | None, pool: str = "pool") -> None:
        spec: dict[str, Any] = {"poolRef": {"name": pool}}
        if priority is not None:
            spec["priority"] = priority
        await self.server.apply(
            {
                "apiVersion": "inference.networking.x-k8s.io/v1alpha2",
                "kind": "InferenceObjective",
                "metadata": {"name": name, "namespace": self.namespace},
                "spec": spec,
            }
        )

    async def become(self, **models: dict[str, int]) -> None:
        await eventually(lambda: self.priorities == models)

    def use(self, *models: tuple[str, str], flow: bool = True) -> None:
        """Configure models, each with its pool."""
        specs = []
        for name, pool in models:
            reference = {"namespace": self.namespace, "name": pool}
            document: dict[str, Any] = {"name": name, "inferencePool": reference}
            if flow:
                document["flowControl"] = {}
            specs.append(ModelSpec.model_validate(document))
        self.objectives.set_models(catalog(*specs))

    def _changed(self, priorities: Priorities) -> None:
        self.priorities = priorities


@pytest.fixture
async def watched(server: StandInApiServer, namespace: str) -> AsyncIterator[Watched]:
    one = Watched(server, namespace)
    yield one
    await one.objectives.close()
    await one.cluster.close()


async def test_models_have_the_priorities_of_their_pool(watched: Watched) -> None:
    await watched.put("batch", -1)
    await watched.put("usual", None)
    await watched.put("foreign", 5, pool="other")
    watched.use(("llama", "pool"), ("qwen", "other"))
    await watched.become(llama={"batch": -1, "usual": 0}, qwen={"foreign": 5})


async def test_changes_arrive(watched: Watched) -> None:
    watched.use(("llama", "pool"))
    await watched.put("chat", 1)
    await watched.become(llama={"chat": 1})
    await watched.put("chat", 2)
    await watched.become(llama={"chat": 2})
    await watched.server.delete("InferenceObjective", watched.namespace, "chat")
    await watched.become(llama={})


async def test_nothing_is_read_without_flow_control(watched: Watched) -> None:
    await watched.put("batch", -1)
    watched.use(("llama", "pool"), flow=False)
    watched.objectives.set_models(Catalog())
    requests = await watched.server.requests()
    assert [one for one in requests if one["resource"] == "inferenceobjectives"] == []
