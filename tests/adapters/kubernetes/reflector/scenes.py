"""Running reflectors, on a scripted API or on the stand-in API server."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from random import Random
from time import monotonic
from typing import Any

from extproc.adapters.kubernetes.api import Api
from extproc.adapters.kubernetes.objects import ConfigMap
from extproc.adapters.kubernetes.reflector import Reflector
from extproc.adapters.kubernetes.resource import Resource
from extproc.lab.api_server.builders import config_map
from extproc.lab.api_server.process import StandInApiServer
from tests.adapters.documents import eventually
from tests.adapters.kubernetes.scripted import (
    ScriptedApi,
    ScriptedResponse,
    at,
    event,
)

Json = dict[str, Any]


class RunningReflector:
    """A running reflector of ConfigMaps, and every set that it reported: values by name."""

    def __init__(self, api: Api, resource: Resource[ConfigMap]) -> None:
        self.sets: list[dict[str, str]] = []
        self.lists: Counter[str] = Counter()
        self.watches: Counter[str] = Counter()
        self.on_report: Callable[[], None] = lambda: None
        self.reflector = Reflector(api, resource, self._changed, self, Random(0))
        self.task = asyncio.create_task(self.reflector.run())

    @property
    def latest(self) -> dict[str, str]:
        return self.sets[-1] if self.sets else {}

    @property
    def trouble(self) -> str:
        return self.reflector.trouble or ""

    async def is_in_trouble(self, of_kind: str) -> None:
        """Wait for this trouble."""
        await eventually(lambda: self.trouble.startswith(of_kind))

    def listed(self, resource: str, result: str) -> None:
        assert resource == "configmaps"
        self.lists[result] += 1

    def watched(self, resource: str, result: str) -> None:
        assert resource == "configmaps"
        self.watches[result] += 1

    def _changed(self, objects: Mapping[str, ConfigMap]) -> None:
        self.sets.append({name: one.data.get("key", "") for name, one in objects.items()})
        self.on_report()


@asynccontextmanager
async def following(api: Api, namespace: str, **selectors: str) -> AsyncIterator[RunningReflector]:
    path = f"/api/v1/namespaces/{namespace}/configmaps"
    running = RunningReflector(api, Resource("configmaps", path, ConfigMap, **selectors))
    try:
        yield running
        assert not running.task.done(), "it keeps watching"
    finally:
        running.task.cancel()
        await asyncio.wait([running.task])
    assert running.task.cancelled()


@asynccontextmanager
async def scripted(
    *responses: ScriptedResponse,
) -> AsyncIterator[tuple[ScriptedApi, RunningReflector]]:
    """Run a reflector through a script, to its end."""
    api = ScriptedApi(configmaps=responses)
    async with following(api, "ns") as running:
        await eventually(lambda: len(api.requests) == len(responses) + 1)
        yield api, running


class ConfigMaps:
    """The ConfigMaps of one namespace of the stand-in server, and the requests for them."""

    def __init__(self, server: StandInApiServer, namespace: str) -> None:
        self.server = server
        self.namespace = namespace

    def item(self, name: str, value: str = "", **labels: str) -> Json:
        body = config_map(self.namespace, name, {"key": value})
        body["metadata"]["labels"] = labels
        return body

    async def put(self, *names: str, value: str = "", **labels: str) -> None:
        await self.server.apply(*(self.item(name, value, **labels) for name in names))

    async def delete(self, name: str) -> None:
        await self.server.delete("ConfigMap", self.namespace, name)

    async def happen_elsewhere(self) -> None:
        """Create a new version without an event in this namespace."""
        other = config_map(f"{self.namespace}-elsewhere", "x", {"key": str(monotonic())})
        await self.server.apply(other)

    async def requests(self) -> list[Json]:
        return [one for one in await self.server.requests() if one["namespace"] == self.namespace]

    async def verbs(self) -> list[str]:
        return [one["verb"] for one in await self.requests()]

    async def watched(self, times: int = 1) -> None:
        """Wait until this many watches were opened."""

        async def is_watched() -> bool:
            watches = [one for one in await self.requests() if one["verb"] == "watch"]
            return [one["status"] for one in watches].count(200) >= times

        await eventually(is_watched)


def item(name: str, value: str = "", version: str = "1") -> Json:
    return at(version, config_map("ns", name, {"key": value}))


def added(name: str, version: str, value: str = "") -> Json:
    return event("ADDED", version, item(name, value))
