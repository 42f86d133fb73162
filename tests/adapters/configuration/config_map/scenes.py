"""A configuration that watches a ConfigMap."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import pytest

from extproc.adapters.configuration.config_map import ModelsConfigMap
from extproc.adapters.kubernetes.cluster import Cluster
from extproc.lab.api_server.builders import config_map
from extproc.lab.api_server.process import StandInApiServer
from tests.adapters.documents import LLAMA, Served, eventually
from tests.adapters.kubernetes.scripted import (
    ScriptedApi,
    ScriptedCluster,
)

Json = dict[str, Any]


QUIET = 0.15
"""Wait in seconds after which a test assumes that nothing more happens."""


class Scene:
    """A ConfigMap of the stand-in API server, and a configuration that watches it."""

    def __init__(self, server: StandInApiServer, namespace: str) -> None:
        self.server = server
        self.namespace = namespace
        self.served = Served(Cluster(server.kubeconfig, allow_loopback=False))
        self.source = source_of(self.served, namespace)
        self.watching: asyncio.Task[None] | None = None

    async def put(self, document: bytes) -> None:
        await self.put_data({"models.yaml": document.decode()})

    async def put_data(self, data: Mapping[str, str], **labels: str) -> None:
        body = config_map(self.namespace, "models", data)
        body["metadata"]["labels"] = labels
        await self.server.apply(body)

    async def delete(self) -> None:
        await self.server.delete("ConfigMap", self.namespace, "models")

    async def start(self, document: bytes = LLAMA) -> None:
        """Put a first document in force, and watch for changes."""
        await self.put(document)
        await self.source.load()
        self.follow()

    def follow(self) -> None:
        self.watching = asyncio.create_task(self.source.watch())

    async def stop(self) -> None:
        if self.watching is not None:
            assert not self.watching.done(), "it keeps watching"
            self.watching.cancel()
            await asyncio.wait([self.watching])
        await self.source.close()
        await self.served.close()

    async def serves(self, *models: str) -> None:
        await eventually(lambda: self.served.models == list(models))

    async def refuses(self, times: int = 1) -> None:
        """Wait until this many documents were refused."""
        await eventually(lambda: self.served.refusals() == times)

    def accepted(self) -> float:
        return self.served.sample("extproc_config_reloads_total", result="success")

    async def events(self) -> list[tuple[str, str, str]]:
        """Return type, reason and message of each Event, in order."""
        found = await self.server.objects("events", self.namespace)
        found.sort(key=lambda one: int(one["metadata"]["resourceVersion"]))
        return [(one["type"], one["reason"], one["message"]) for one in found]

    async def has_events(self, *reasons: str) -> None:
        """Wait until there are Events with exactly these reasons."""

        async def are_created() -> bool:
            return [reason for _, reason, _ in await self.events()] == list(reasons)

        await eventually(are_created)

    async def requests(self) -> list[Json]:
        return [one for one in await self.server.requests() if one["namespace"] == self.namespace]

    async def watched(self) -> None:
        async def is_watched() -> bool:
            return any(one["verb"] == "watch" and one["status"] for one in await self.requests())

        await eventually(is_watched)


def source_of(served: Served, namespace: str = "ns") -> ModelsConfigMap:
    return ModelsConfigMap(
        namespace,
        "models",
        served.cluster,
        served.configuration,
        served.telemetry.discovery,
        Random(0),
    )


@asynccontextmanager
async def following(api: ScriptedApi) -> AsyncIterator[Served]:
    """Watch a scripted API after its first document."""
    served = Served(ScriptedCluster(api))
    source = source_of(served)
    await source.load()
    task = asyncio.create_task(source.watch())
    yield served
    assert not task.done(), "it keeps watching"
    task.cancel()
    await asyncio.wait([task])
    await source.close()
    await served.close()


def models(document: bytes) -> Json:
    return config_map("ns", "models", {"models.yaml": document.decode()})


def messages(caplog: pytest.LogCaptureFixture, level: int) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == level]
