"""A scene on Kubernetes: configuration from a ConfigMap, endpoints from EndpointSlices.

The stand-in replicas act as the pods. All have the loopback address but different ports,
so each pod has its own EndpointSlice.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import yaml

from extproc.lab.api_server.builders import config_map, endpoint_slice
from extproc.lab.api_server.process import StandInApiServer
from extproc.lab.stack.processes import until
from tests.e2e.scene import MODEL, HttpResponse, Json, Options, Scene, chat
from tests.extent import FULL, PATIENCE

NAMESPACE = "inference"
SERVICE = "vllm"
CONFIG_MAP = "extproc-models"
FROM_SERVICE = {"service": {"namespace": NAMESPACE, "name": SERVICE, "port": "http"}}

READY = {"ready": True, "serving": True, "terminating": False}
STARTING = {"ready": False, "serving": False, "terminating": False}
TERMINATING = {"ready": False, "serving": True, "terminating": True}

_PAUSE = 0.0 if FULL else 0.1
"""Seconds between the requests of a client under load: `make test` leaves time for other tests."""


@dataclass(frozen=True)
class ClusterOptions(Options):
    """Differences of a scene on Kubernetes from the default scene."""

    replica_arguments: Sequence[str] = ("--time-scale", "20")
    sidecar_arguments: Sequence[str] = ("--allow-loopback",)
    source: Mapping[str, Any] = field(default_factory=lambda: FROM_SERVICE)
    pods: int | None = None
    """Number of replicas that are ready from the start; all of them if None."""
    start_sidecar: bool = True
    tls: bool = False
    """True for an API server with TLS, and so with HTTP/2."""

    @property
    def ready_replicas(self) -> int:
        """The number of pods at the start."""
        return self.replicas if self.pods is None else self.pods

    def document(self) -> Json:
        """Return the models document."""
        model = {
            "name": MODEL,
            **self.source,
            "loadBalancing": {"strategy": self.strategy, "prefixHash": dict(self.prefix_hash)},
        }
        return {"models": [model, *self.more_models]}


@dataclass(frozen=True)
class ClusterScene(Scene):
    """A running stack on Kubernetes."""

    api: StandInApiServer

    async def configure(self, document: Json) -> None:
        """Write the models document into the ConfigMap."""
        await self.api.apply(
            config_map(NAMESPACE, CONFIG_MAP, {"models.yaml": yaml.safe_dump(document)})
        )

    def pod(self, number: int, conditions: Mapping[str, bool] = READY) -> Json:
        """Return the EndpointSlice of a replica's pod in this condition."""
        port = int(self.replicas.addresses[number].rpartition(":")[2])
        name = f"vllm-{number}"
        return endpoint_slice(
            SERVICE, NAMESPACE, name, [("127.0.0.1", name, conditions)], port=port
        )

    async def remove(self, number: int) -> None:
        """Delete the EndpointSlice of a replica's pod."""
        await self.api.delete("EndpointSlice", NAMESPACE, f"vllm-{number}")

    async def ready(self, model: str = MODEL) -> set[str]:
        """Return the addresses that the sidecar routes a model to."""
        state = (await self.sidecar.state()).get(model, {"endpoints": []})
        return {e["address"] for e in state["endpoints"] if e["state"] == "ready"}

    async def routes_to(self, *numbers: int, seconds: float = 5) -> None:
        """Wait until the sidecar routes to these replicas only."""
        wanted = {self.replicas.addresses[number] for number in numbers}

        async def as_wanted() -> bool:
            return await self.ready() == wanted

        await until(as_wanted, seconds, f"the endpoints to be {numbers}")

    async def requests_to(self, number: int) -> int:
        """Return the requests that a replica got, after all that the sidecar sent there ended."""
        address = self.replicas.addresses[number]

        async def is_idle() -> bool:
            return address not in await self.sidecar.inflight()

        await until(is_idle, PATIENCE, f"the requests to {address} to end")
        return (await self.replicas.requests())[address]["total"]

    @asynccontextmanager
    async def load(self, clients: int = 20) -> AsyncIterator[Counter[tuple[int, str]]]:
        """Run clients that send requests one by one; count responses by status and replica."""
        responses = Counter[tuple[int, str]]()
        stop = asyncio.Event()

        async def client(name: int) -> None:
            turn = 0
            while not stop.is_set():
                turn += 1
                reply = await self.send(chat(f"client {name}, turn {turn}", tokens=3))
                responses[reply.status, _replica(reply)] += 1
                await asyncio.sleep(_PAUSE)

        tasks = [asyncio.create_task(client(name)) for name in range(clients)]
        try:
            yield responses
        finally:
            stop.set()
            await asyncio.gather(*tasks)


def _replica(reply: HttpResponse) -> str:
    return reply.replica if "x-stand-in-port" in reply.headers else ""


def statuses(responses: Counter[tuple[int, str]]) -> set[int]:
    """Return the statuses of the counted responses."""
    return {status for status, _ in responses}


Deploy = Callable[..., Awaitable[ClusterScene]]
