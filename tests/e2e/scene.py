"""Requests to a running stack, and the state that end-to-end tests read from it."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from extproc.lab.stack.envoy import Envoy, envoy_binary
from extproc.lab.stack.processes import until
from extproc.lab.stack.sidecar import SidecarProcess
from extproc.lab.stack.stand_in_fleet import StandInFleet
from tests.extent import PATIENCE

MODEL = "llama"
CHAT = "/v1/chat/completions"
CONFIGS = [
    "envoy.yaml",
    "metadata.yaml",
    "fallback-override-host.yaml",
    "fail-closed.yaml",
]

Json = dict[str, Any]


def _unchanged(config: Json) -> None:
    del config


@dataclass(frozen=True)
class Options:
    """Differences of a scene from the recommended configuration."""

    replicas: int = 3
    strategy: str = "PrefixHash"
    prefix_hash: Mapping[str, Any] = field(default_factory=dict)
    adapters: Sequence[str] = ()
    flow_control: Mapping[str, Any] | None = None
    more_models: Sequence[Json] = ()
    more_endpoints: Sequence[str] = ()
    config: str = "envoy.yaml"
    change_config: Callable[[Json], None] = _unchanged
    unix_socket: bool = False
    replica_arguments: Sequence[str] = ()
    sidecar_arguments: Sequence[str] = ()
    patience: float = PATIENCE
    """Maximum seconds for a response, so that a test without one fails in time."""

    def models(self, addresses: Sequence[str]) -> Json:
        """Return the models document with these endpoints."""
        model: Json = {
            "name": MODEL,
            "endpoints": [*addresses, *self.more_endpoints],
            "loadBalancing": {"strategy": self.strategy, "prefixHash": dict(self.prefix_hash)},
        }
        if self.adapters:
            model["adapters"] = list(self.adapters)
        if self.flow_control is not None:
            model["flowControl"] = dict(self.flow_control)
        return {"models": [model, *self.more_models]}


@dataclass(frozen=True)
class HttpResponse:
    """A complete response."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def replica(self) -> str:
        """The address of the stand-in that sent the response."""
        return f"127.0.0.1:{self.headers['x-stand-in-port']}"

    def json(self) -> Any:
        """Return the parsed JSON body."""
        return json.loads(self.body)

    def error(self) -> Json:
        """Return the error of a refusal, which has OpenAI's shape."""
        found: Json = self.json()["error"]
        assert set(found) == {"message", "type", "param", "code"}
        return found


@dataclass(frozen=True)
class Scene:
    """A running stack."""

    envoy: Envoy
    sidecar: SidecarProcess
    replicas: StandInFleet
    session: aiohttp.ClientSession

    async def send(
        self,
        body: bytes | Json,
        *,
        path: str = CHAT,
        method: str = "POST",
        headers: Mapping[str, str] | None = None,
    ) -> HttpResponse:
        """Send one request and read its response to the end."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        async with self.session.request(method, path, data=data or None, headers=headers) as reply:
            return HttpResponse(reply.status, reply.headers, await reply.read())

    def stream(self, body: Json) -> Any:
        """Return the context manager of a streamed response."""
        return self.session.post(CHAT, json={**body, "stream": True})

    async def agree_on_inflight(self, expected: int, seconds: float = PATIENCE) -> None:
        """Wait until sidecar and replicas both count `expected` requests, on the same endpoints."""

        async def agree() -> bool:
            ours, theirs = await self.sidecar.inflight(), await self.replicas.inflight()
            return ours == theirs and sum(ours.values()) == expected

        try:
            await until(agree, seconds, f"{expected} requests in flight")
        except TimeoutError as error:
            ours, theirs = await self.sidecar.inflight(), await self.replicas.inflight()
            raise AssertionError(f"{error}: sidecar {ours}, replicas {theirs}") from None

    async def metric(self, name: str, **labels: str) -> float:
        """Return a sample of the sidecar's metrics, or 0 if there is none."""
        _, text = await self.sidecar.get("/metrics")
        shown = ",".join(f'{key}="{value}"' for key, value in sorted(labels.items()))
        sample = f"{name}{{{shown}}} " if labels else f"{name} "
        lines = (line for line in text.splitlines() if line.startswith(sample))
        return next((float(line.split()[-1]) for line in lines), 0.0)

    async def agree_on_queue(self, expected: int, model: str = MODEL) -> None:
        """Wait until this number of requests waits in the sidecar."""

        async def agree() -> bool:
            queue = (await self.sidecar.state())[model]["queue"]
            return bool(queue["requests"] == expected)

        await until(agree, PATIENCE, f"{expected} requests in the queue")

    def routes(self) -> set[str]:
        """Return the routes of the requests that reached a replica; refused requests have none."""
        return {line["route"] for line in self.envoy.access_log() if line["upstream"]}

    async def access_log(self, lines: int) -> list[Json]:
        """Return the access log once it has that many lines."""
        await until(lambda: len(self.envoy.access_log()) >= lines, PATIENCE, f"{lines} log lines")
        return self.envoy.access_log()


Launch = Callable[..., Awaitable[Scene]]


def chat(user: str, *, model: str = MODEL, system: str = "", tokens: int = 2, **more: Any) -> Json:
    """Return the body of a chat request."""
    messages = [{"role": "system", "content": system}] if system else []
    messages.append({"role": "user", "content": user})
    return {"model": model, "messages": messages, "max_tokens": tokens, **more}


async def events(response: aiohttp.ClientResponse) -> AsyncIterator[str]:
    """Yield the data of each server-sent event when it arrives."""
    async for line in response.content:
        if line.startswith(b"data: "):
            yield line[6:].decode().rstrip("\n")


def chosen_endpoint(line: Json) -> str:
    """Return the endpoint that the sidecar chose, from an access log line of any configuration."""
    endpoint: str = (line.get("decision") or line)["endpoint"]
    return endpoint


BUFFER = "envoy.filters.http.buffer"
EXT_PROC = "envoy.filters.http.ext_proc"


def manager_of(config: Json) -> Json:
    """Return the HTTP connection manager of a configuration, which the caller may change."""
    listener = config["static_resources"]["listeners"][0]
    manager: Json = listener["filter_chains"][0]["filters"][0]["typed_config"]
    return manager


def ext_proc_filter(config: Json) -> Json:
    """Return the ext_proc filter of a configuration, which the caller may change."""
    filters = manager_of(config)["http_filters"]
    found: Json = next(one["typed_config"] for one in filters if one["name"] == EXT_PROC)
    return found


def processing_modes(config: Json) -> list[Json]:
    """Return the processing modes of the filter and of the routes that override it."""
    modes = [ext_proc_filter(config)["processing_mode"]]
    for route in routes_of(config):
        own = route.get("typed_per_filter_config", {}).get(EXT_PROC, {}).get("overrides", {})
        if "processing_mode" in own:
            modes.append(own["processing_mode"])
    return modes


def routes_of(config: Json) -> list[Json]:
    """Return the routes of a configuration, which the caller may change."""
    hosts = manager_of(config)["route_config"]["virtual_hosts"]
    return [route for host in hosts for route in host["routes"]]


def show_bodies(config: Json, mode: str) -> None:
    """Make Envoy send every request body to the sidecar in this mode, without a buffer filter."""
    manager = manager_of(config)
    manager["http_filters"] = [one for one in manager["http_filters"] if one["name"] != BUFFER]
    ext_proc_filter(config).pop("send_body_without_waiting_for_header_response", None)
    for modes in processing_modes(config):
        modes["request_body_mode"] = mode
    for route in routes_of(config):
        route.get("typed_per_filter_config", {}).pop(BUFFER, None)


def envoy_minor() -> int:
    """Return the minor version of the running Envoy: 38 for 1.38.3."""
    printed = subprocess.run([envoy_binary(), "--version"], capture_output=True, check=True).stdout
    found = re.search(rb"/1\.(\d+)\.", printed)
    assert found, printed
    return int(found[1])
