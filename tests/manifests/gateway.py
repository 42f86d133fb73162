"""The pod of base/ on loopback: its Envoy configuration, a real sidecar, stand-in replicas."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import yaml

from extproc.lab.stack.envoy import Envoy
from extproc.lab.stack.processes import free_port
from extproc.lab.stack.sidecar import FileSidecar
from extproc.lab.stack.stand_in_fleet import StandInFleet
from tests.e2e.forked import ForkedFileSidecar, ForkedFleet
from tests.e2e.scene import CHAT, MODEL, chat
from tests.extent import PATIENCE
from tests.manifests.builds import MANIFESTS, built

CLIENT_TIMEOUT = aiohttp.ClientTimeout(total=PATIENCE)


@dataclass(frozen=True)
class RunningGateway:
    """A running Envoy with its sidecar and replicas."""

    envoy: Envoy
    sidecar: FileSidecar
    replicas: StandInFleet
    session: aiohttp.ClientSession

    async def ask(self, prompt: str) -> tuple[int, str, str]:
        """Return the status, the replica's port and the `connection` header of a response."""
        async with self.session.post(self.envoy.url + CHAT, json=chat(prompt)) as answer:
            await answer.read()
            port = answer.headers.get("x-stand-in-port", "")
            return answer.status, port, answer.headers.get("connection", "")

    def stream(self, tokens: int) -> Any:
        """Return the context of a streaming response."""
        body = {**chat("hello", tokens=tokens), "stream": True}
        return self.session.post(self.envoy.url + CHAT, json=body)

    async def stats(self, path: str, method: str = "GET") -> tuple[int, str]:
        """Return status and body from the listener for probes and metrics."""
        url = f"http://127.0.0.1:{self.envoy.ports['stats']}{path}"
        async with self.session.request(method, url) as answer:
            return answer.status, await answer.text()

    async def drain(self, **seconds: str) -> asyncio.subprocess.Process:
        """Start Envoy's preStop hook."""
        port = self.envoy.admin.rpartition(":")[2]
        return await asyncio.create_subprocess_exec(
            "bash",
            str(MANIFESTS / "base" / "drain.sh"),
            env={**os.environ, "DRAIN_ADMIN_PORT": port, **seconds},
            stderr=asyncio.subprocess.PIPE,
        )

    def kill_sidecar(self) -> None:
        """Send SIGKILL to the sidecar."""
        self.sidecar.signal(signal.SIGKILL)


def envoy_of_base() -> dict[str, Any]:
    """Return Envoy's configuration from base/."""
    data = built("base").one("Deployment")["spec"]["template"]["spec"]["volumes"]
    name = next(v["configMap"]["name"] for v in data if "configMap" in v)
    config: dict[str, Any] = yaml.safe_load(
        built("base").one("ConfigMap", name)["data"]["envoy.yaml"]
    )
    return config


def _moved(socket: Path, replicas: list[str]) -> dict[str, Any]:
    """Return the configuration with addresses that are free on this machine."""
    config = envoy_of_base()
    admin = free_port()
    config["admin"]["address"]["socket_address"]["port_value"] = admin
    for listener in config["static_resources"]["listeners"]:
        listener["address"] = {"socket_address": {"address": "127.0.0.1", "port_value": 0}}
    clusters = {cluster["name"]: cluster for cluster in config["static_resources"]["clusters"]}
    addresses: dict[str, list[Any]] = {
        "extproc": [{"pipe": {"path": str(socket)}}],
        "admin": [{"socket_address": {"address": "127.0.0.1", "port_value": admin}}],
        # The only host name here is "localhost", which has one address.
        "fallback": [
            {"socket_address": {"address": "localhost", "port_value": int(a.rpartition(":")[2])}}
            for a in replicas
        ],
    }
    for name, places in addresses.items():
        endpoints = [{"endpoint": {"address": place}} for place in places]
        clusters[name]["load_assignment"]["endpoints"] = [{"lb_endpoints": endpoints}]
    return config


@asynccontextmanager
async def run_gateway(
    directory: Path, *strategies: str, arguments: Sequence[str] = ()
) -> AsyncIterator[RunningGateway]:
    """Start all parts in the pod's order, and kill them in reverse order.

    Each strategy adds a model with its name, on the same replicas. The sidecar gets the arguments.
    """
    socket = directory / "extproc.sock"
    async with AsyncExitStack() as cleanup:
        replicas = ForkedFleet(3, directory, ["--time-scale", "1"])
        cleanup.push_async_callback(replicas.kill)
        await replicas.start()
        model = {"name": MODEL, "endpoints": replicas.addresses, "flowControl": {}}
        models: list[dict[str, Any]] = [model]
        for strategy in strategies:
            balancing = {"strategy": strategy}
            models.append({**model, "name": strategy, "loadBalancing": balancing})
        document = {"models": models}
        unix = f"unix:{socket}"
        sidecar = ForkedFileSidecar(document, directory, listen=unix, arguments=arguments)
        cleanup.push_async_callback(sidecar.kill)
        await sidecar.start()
        envoy = Envoy(_moved(socket, replicas.addresses), directory)
        cleanup.push_async_callback(envoy.kill)
        await envoy.start()
        session = await cleanup.enter_async_context(aiohttp.ClientSession(timeout=CLIENT_TIMEOUT))
        yield RunningGateway(envoy, sidecar, replicas, session)
