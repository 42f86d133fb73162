"""A client of the stand-in API server, for tests."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
from kubernetes.aio import client, config
from kubernetes.aio.watch import Watch

from extproc.lab.api_server.builders import config_map
from extproc.lab.api_server.process import StandInApiServer

Json = dict[str, Any]

KUBECTL = Path(sys.executable).parent / "kubectl"
MERGE = "application/merge-patch+json"
STRATEGIC_MERGE = "application/strategic-merge-patch+json"

SOON = 10.0
"""Most seconds to wait for an event, which normally takes milliseconds."""

QUIET = 0.15
"""Seconds to wait before a test concludes that nothing happens."""

_numbers = count()


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    json: Any

    @property
    def names(self) -> list[str]:
        return [item["metadata"]["name"] for item in self.json["items"]]

    @property
    def version(self) -> str:
        version: str = self.json["metadata"]["resourceVersion"]
        return version


class Watching:
    """A watch whose response has begun."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self.response = response

    async def line(self) -> bytes:
        return await asyncio.wait_for(self.response.content.readline(), SOON)

    async def event(self) -> Json:
        event: Json = json.loads(await self.line())
        return event

    async def seen(self) -> tuple[str, str]:
        """Return the type and the name of the next event."""
        event = await self.event()
        return event["type"], event["object"]["metadata"]["name"]

    async def is_quiet(self) -> bool:
        try:
            await asyncio.wait_for(self.response.content.readline(), QUIET)
        except TimeoutError:
            return True
        return False


class Api:
    """A client of the server, in a namespace that no other test uses."""

    def __init__(self, server: StandInApiServer, session: aiohttp.ClientSession) -> None:
        self.server = server
        self.session = session
        self.namespace = f"test-{next(_numbers)}"
        self.maps = f"/api/v1/namespaces/{self.namespace}/configmaps"
        self.slices = f"/apis/discovery.k8s.io/v1/namespaces/{self.namespace}/endpointslices"

    async def ask(
        self,
        method: str,
        path: str,
        body: object = None,
        content_type: str = "application/json",
        token: str = "any",
        **query: str,
    ) -> Answer:
        headers = {"Content-Type": content_type, "Authorization": f"Bearer {token}"}
        data = body if isinstance(body, bytes) else json.dumps(body)
        async with self.session.request(
            method, self.server.url + path, data=data, headers=headers, params=query
        ) as response:
            return Answer(response.status, dict(response.headers), await response.json())

    async def get(self, path: str, **query: str) -> Answer:
        return await self.ask("GET", path, **query)

    @asynccontextmanager
    async def watch(self, path: str = "", **query: str) -> AsyncIterator[Watching]:
        url = self.server.url + (path or self.maps)
        async with self.session.get(url, params={"watch": "1", **query}) as response:
            assert response.status == 200
            assert response.headers["Content-Type"] == "application/json"
            yield Watching(response)

    def map(self, name: str, value: str = "", **labels: str) -> Json:
        body = config_map(self.namespace, name, {"key": value})
        body["metadata"]["labels"] = labels
        return body

    async def put(self, *names: str, value: str = "", **labels: str) -> None:
        await self.server.apply(*(self.map(name, value, **labels) for name in names))

    async def version(self) -> str:
        return (await self.get(self.maps)).version


def role(namespace: str, *rules: tuple[str, str, list[str], list[str]]) -> Json:
    """Return a Role with rules of (group, resource, verbs, names)."""
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "Role",
        "metadata": {"name": "r", "namespace": namespace},
        "rules": [
            {"apiGroups": [g], "resources": [r], "verbs": v, **({"resourceNames": n} if n else {})}
            for g, r, v, n in rules
        ],
    }


# These functions have no type annotations.
new_watch: Any = Watch
load_kube_config: Any = config.load_kube_config


@asynccontextmanager
async def official_client(server: StandInApiServer) -> AsyncIterator[client.ApiClient]:
    """Yield the official asyncio client, configured by the server's kubeconfig."""
    configuration = client.Configuration()
    await load_kube_config(config_file=str(server.kubeconfig), client_configuration=configuration)
    async with client.ApiClient(configuration) as official:
        yield official


def address_of(server: StandInApiServer) -> tuple[str, int]:
    host, _, port = server.url.removeprefix("http://").partition(":")
    return host, int(port)
