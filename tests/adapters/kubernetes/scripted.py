"""Scripted API server clients, for tests that need an exact sequence of responses."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field

from extproc.adapters.endpoints.screening import Screen
from extproc.adapters.kubernetes.api import OPENED, WatchSeconds
from extproc.adapters.kubernetes.cluster import Cluster, ClusterConnection
from extproc.adapters.kubernetes.errors import KubernetesError
from extproc.adapters.kubernetes.objects import Json


@dataclass(frozen=True)
class Listed:
    """The response to a list, or to one page of it."""

    version: str
    items: Sequence[Json] = ()
    more: str = ""
    """Token of the next page."""

    def json(self) -> Json:
        metadata = {"resourceVersion": self.version, "continue": self.more}
        return {"metadata": metadata, "items": list(self.items)}


@dataclass(frozen=True)
class Watched:
    """The response to a watch: its events and its end."""

    events: Sequence[Json] = ()
    error: KubernetesError | None = None
    stays_open: bool = False
    closes_in: float = 0.0
    """Seconds that closing takes, if the watch stays open."""
    begins: asyncio.Event | None = None
    """The events come once this is set; at once if it is None."""


ScriptedResponse = Listed | Watched | KubernetesError | Json


@dataclass(frozen=True)
class ApiRequest:
    """A request that arrived."""

    verb: str
    plural: str
    query: Mapping[str, object] = field(default_factory=dict)

    @property
    def since(self) -> object:
        """Version from which a watch starts."""
        return self.query.get("resourceVersion")


class ScriptedApi:
    """An `Api` that gives each request its next scripted response, and none after the last."""

    def __init__(self, **scripts: Sequence[ScriptedResponse]) -> None:
        self._scripts = {plural: list(script) for plural, script in scripts.items()}
        self.requests: list[ApiRequest] = []
        self.created: list[tuple[str, Json]] = []

    @property
    def verbs(self) -> list[str]:
        """Verbs of the requests, in order."""
        return [request.verb for request in self.requests]

    async def get(self, path: str, query: Mapping[str, object]) -> Json:
        response = await self._next("list", path, query)
        if isinstance(response, Listed):
            return response.json()
        assert isinstance(response, dict), f"the script has {response} for a list"
        return response

    async def create(self, path: str, body: Json) -> None:
        self.created.append((path, body))

    async def watch(
        self, path: str, query: Mapping[str, object], seconds: WatchSeconds
    ) -> AsyncGenerator[Json, None]:
        response = await self._next("watch", path, query)
        assert isinstance(response, Watched), f"the script has {response} for a watch"
        yield OPENED
        if response.begins is not None:
            await response.begins.wait()
        for event in response.events:
            yield event
        if response.stays_open:
            try:
                await asyncio.Event().wait()
            finally:
                await asyncio.sleep(response.closes_in)
        if response.error:
            raise response.error

    async def close(self) -> None:
        """Do nothing: there is no connection."""

    async def _next(self, verb: str, path: str, query: Mapping[str, object]) -> ScriptedResponse:
        plural = path.rpartition("/")[2]
        self.requests.append(ApiRequest(verb, plural, dict(query)))
        script = self._scripts.get(plural)
        if not script:
            await asyncio.Event().wait()
            raise AssertionError
        response = script.pop(0)
        # As over a network, no response comes at once.
        await asyncio.sleep(0)
        if isinstance(response, KubernetesError):
            raise response
        return response


class ScriptedCluster(Cluster):
    """A cluster whose connection is a scripted API, with any screen."""

    def __init__(self, api: ScriptedApi, screen: Screen | None = None) -> None:
        super().__init__(None, allow_loopback=False)
        self._connection = ClusterConnection(api, screen or Screen((), allow_loopback=False))


def at(version: str, item: Json) -> Json:
    """Return an object with a version."""
    return {**item, "metadata": {**item["metadata"], "resourceVersion": version}}


def event(kind: str, version: str, item: Json) -> Json:
    """Return an event of a watch."""
    return {"type": kind, "object": at(version, item)}


def bookmark(version: str) -> Json:
    """Return a bookmark, as sparse as that of a real server."""
    return {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": version}}}


def expired() -> Json:
    """Return the event by which a watch with status 200 reports an expired version."""
    message = "too old resource version: 1 (2)"
    status = {"kind": "Status", "code": 410, "reason": "Expired", "message": message}
    return {"type": "ERROR", "object": status}
