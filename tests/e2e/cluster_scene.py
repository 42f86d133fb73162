"""A scene on Kubernetes: configuration from a ConfigMap, endpoints from EndpointSlices.

The stand-in replicas are its pods. All have the loopback address and a port of their
own, so each stands in a slice of its own.
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
from tests.e2e.scene import MODEL, Json, Options, Reply, Scene, chat

NAMESPACE = "inference"
SERVICE = "vllm"
CONFIG_MAP = "extproc-models"
FROM_SERVICE = {"service": {"namespace": NAMESPACE, "name": SERVICE, "port": "http"}}

READY = {"ready": True, "serving": True, "terminating": False}
STARTING = {"ready": False, "serving": False, "terminating": False}
TERMINATING = {"ready": False, "serving": True, "terminating": True}


@dataclass(frozen=True)
class ClusterOptions(Options):
    """How a scene on Kubernetes differs from the usual one."""

    replica_arguments: Sequence[str] = ("--time-scale", "20")
    sidecar_arguments: Sequence[str] = ("--allow-loopback",)
    source: Mapping[str, Any] = field(default_factory=lambda: FROM_SERVICE)
    pods: int | None = None
    """The replicas that are ready from the start; all of them if None."""
    start_sidecar: bool = True

    @property
    def ready_replicas(self) -> int:
        """How many pods there are at first."""
        return self.replicas if self.pods is None else self.pods

    def document(self) -> Json:
        """The models document."""
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
        """Writes the models document into the ConfigMap."""
        await self.api.apply(
            config_map(NAMESPACE, CONFIG_MAP, {"models.yaml": yaml.safe_dump(document)})
        )

    def pod(self, number: int, conditions: Mapping[str, bool] = READY) -> Json:
        """The slice that says how a replica's pod is."""
        port = int(self.replicas.addresses[number].rpartition(":")[2])
        name = f"vllm-{number}"
        return endpoint_slice(
            SERVICE, NAMESPACE, name, [("127.0.0.1", name, conditions)], port=port
        )

    async def remove(self, number: int) -> None:
        """The pod is gone, and its slice with it."""
        await self.api.delete("EndpointSlice", NAMESPACE, f"vllm-{number}")

    async def ready(self, model: str = MODEL) -> set[str]:
        """The addresses that the sidecar routes a model to."""
        state = (await self.sidecar.state()).get(model, {"endpoints": []})
        return {e["address"] for e in state["endpoints"] if e["state"] == "ready"}

    async def routes_to(self, *numbers: int, seconds: float = 5) -> None:
        """Waits until the sidecar routes to these replicas and no others."""
        wanted = {self.replicas.addresses[number] for number in numbers}

        async def does() -> bool:
            return await self.ready() == wanted

        await until(does, seconds, f"the endpoints to be {numbers}")

    @asynccontextmanager
    async def load(self, clients: int = 20) -> AsyncIterator[Counter[tuple[int, str]]]:
        """Clients that ask without a pause meanwhile; counts answers by status and replica."""
        answers = Counter[tuple[int, str]]()
        stop = asyncio.Event()

        async def client(name: int) -> None:
            turn = 0
            while not stop.is_set():
                turn += 1
                reply = await self.send(chat(f"client {name}, turn {turn}", tokens=3))
                answers[reply.status, _replica(reply)] += 1

        tasks = [asyncio.create_task(client(name)) for name in range(clients)]
        try:
            yield answers
        finally:
            stop.set()
            await asyncio.gather(*tasks)


def _replica(reply: Reply) -> str:
    return reply.replica if "x-stand-in-port" in reply.headers else ""


def statuses(answers: Counter[tuple[int, str]]) -> set[int]:
    """The statuses among the answers."""
    return {status for status, _ in answers}


Deploy = Callable[..., Awaitable[ClusterScene]]
