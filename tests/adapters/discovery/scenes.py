"""A discovery on a namespace of the stand-in API server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from random import Random
from typing import Any

from extproc.adapters.discovery.discovery import Discovery
from extproc.adapters.kubernetes.cluster import Cluster
from extproc.core.fleet.endpoint import Endpoint
from extproc.core.schema import InferencePoolSpec, ServiceSpec, Source
from extproc.lab.api_server.builders import endpoint_slice, inference_pool, pod
from extproc.lab.api_server.process import StandInApiServer
from tests.adapters.documents import eventually

Json = dict[str, Any]


READY = {"ready": True, "serving": True, "terminating": False}


SERVICE = ServiceSpec(namespace="ns", name="vllm", port="http")


POOL = InferencePoolSpec(namespace="ns", name="pool")


class Observed:
    """A discovery with everything that it published and rejected, in order."""

    def __init__(self, cluster: Cluster) -> None:
        self.published: list[dict[str, str]] = []
        self.refused: list[tuple[str, str]] = []
        self.discovery = Discovery(cluster, lambda *found: self.publish(*found), self, Random(0))

    def found(self, source: Source) -> dict[str, str]:
        return {one.name: one.address for one in self.discovery.endpoints(source)}

    def endpoint_refused(self, source: Source, reason: str) -> None:
        self.refused.append((str(source), reason))

    def looked_up(self, result: str) -> None:
        pass

    def listed(self, resource: str, result: str) -> None:
        pass

    def watched(self, resource: str, result: str) -> None:
        pass

    def publish(self, source: Source, endpoints: tuple[Endpoint, ...]) -> None:
        assert self.discovery.endpoints(source) == endpoints
        self.published.append({one.name: one.address for one in endpoints})


@asynccontextmanager
async def observed(cluster: Cluster) -> AsyncIterator[Observed]:
    before = asyncio.all_tasks()
    one = Observed(cluster)
    yield one
    await one.discovery.keep_only(())
    left = asyncio.all_tasks() - before - {asyncio.current_task()}
    assert not left, "no task is left"
    await cluster.close()


class Scene:
    """A namespace of the stand-in API server, and a discovery that watches it."""

    def __init__(self, server: StandInApiServer, namespace: str, observed: Observed) -> None:
        self.server = server
        self.namespace = namespace
        self.observed = observed
        self.discovery = observed.discovery
        self.service = ServiceSpec(namespace=namespace, name="vllm", port="http")
        self.pool = InferencePoolSpec(namespace=namespace, name="pool")

    async def put_slice(
        self,
        name: str,
        endpoints: Mapping[str, str],
        conditions: Mapping[str, bool] = READY,
        service: str = "vllm",
        port: int = 8000,
    ) -> None:
        """Create or replace a slice with these addresses by pod."""
        those = [(address, pod_name, conditions) for pod_name, address in endpoints.items()]
        await self.server.apply(endpoint_slice(service, self.namespace, name, those, port=port))

    async def put_pool(self, selector: Mapping[str, str], ports: Sequence[int] = (8000,)) -> None:
        await self.server.apply(inference_pool(self.namespace, "pool", selector, ports))

    async def put_pod(self, name: str, ip: str, app: str = "vllm", **more: bool) -> None:
        await self.server.apply(pod(self.namespace, name, {"app": app}, ip, **more))

    async def requests(self, verb: str = "") -> list[Json]:
        found = [one for one in await self.server.requests() if one["namespace"] == self.namespace]
        return [one for one in found if verb in ("", one["verb"])]

    async def watched(self, plural: str, times: int = 1) -> None:
        """Wait until this many watches of a resource were opened."""

        async def is_watched() -> bool:
            watches = [one for one in await self.requests("watch") if one["resource"] == plural]
            return [one["status"] for one in watches].count(200) >= times

        await eventually(is_watched)

    async def becomes(self, **addresses: str) -> None:
        """Wait until exactly these pods are known, with these addresses."""
        wanted = {f"{self.namespace}/{name}": address for name, address in addresses.items()}
        await eventually(lambda: self.published[-1:] == [wanted])

    @property
    def published(self) -> list[dict[str, str]]:
        return self.observed.published

    @property
    def names(self) -> list[list[str]]:
        """Pod names of each published set."""
        return [[name.partition("/")[2] for name in one] for one in self.published]
