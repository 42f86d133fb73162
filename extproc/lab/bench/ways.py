"""The compared setups: each is a stack of processes in front of the same upstreams."""

from __future__ import annotations

import json
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from extproc.edge.tls import KeyPair
from extproc.lab.bench import configs, peers
from extproc.lab.bench.wire import MODEL
from extproc.lab.stack.envoy import Envoy
from extproc.lab.stack.processes import Process, until
from extproc.lab.stack.sidecar import FileSidecar

TRANSPORTS = ("grpcio", "fast")
"""Transports of `extproc serve`."""


@dataclass(frozen=True)
class Running:
    """A running setup."""

    port: int
    proxy: Process
    sidecar: Process | None = None

    async def undecided(self) -> int:
        """Count the requests that Envoy passed without the sidecar's decision.

        `envoy.yaml` does that when the sidecar is late. Such requests cost the sidecar nothing, and
        must not make it seem cheap.
        """
        if self.sidecar is None or not isinstance(self.proxy, Envoy):
            return 0
        return sum((await self.proxy.stats(r"ext_proc\.failure_mode_allowed$")).values())


Start = Callable[[Sequence[str], Path, AsyncExitStack], Awaitable[Running]]
"""Starts a setup in front of upstreams, with its files in its own directory."""


@dataclass(frozen=True)
class Way:
    """A compared setup."""

    name: str
    description: str
    """Its description in the table."""
    start: Start


ALONE = "Envoy"
LUA = "Envoy + Lua + ring_hash"
VLLM, SGLANG = (f"{name} {version}" for name, version in peers.PEERS.items())


def of_transport(transport: str) -> str:
    """Return the name of the setup with the sidecar on this transport."""
    return f"Envoy + extproc {transport}"


def with_tls(pair: KeyPair) -> list[Way]:
    """Return the sidecar's setups on each transport, with TLS between Envoy and the sidecar."""
    description = (
        "`PrefixHash` in `extproc serve --transport {} --tls-cert ...`; Envoy with one worker"
    )
    return [
        Way(
            f"{of_transport(transport)}, TLS",
            description.format(transport),
            partial(_start_extproc, transport, tls=pair),
        )
        for transport in TRANSPORTS
    ]


def ways(with_peers: bool) -> list[Way]:
    """Return the setups that can run here, in the order of the tables."""
    found = [
        Way(ALONE, "round robin, no filter; one worker", _start_alone),
        Way(LUA, "a Lua filter hashes the start of the prompt; one worker", _start_lua),
    ]
    for transport in TRANSPORTS:
        description = (
            f"`PrefixHash` in `extproc serve --transport {transport}`; Envoy with one worker"
        )
        found.append(Way(of_transport(transport), description, partial(_start_extproc, transport)))
    for name in peers.installed() if with_peers else []:
        description = "its own proxy, policy `cache_aware`; one worker thread"
        found.append(Way(f"{name} {peers.PEERS[name]}", description, partial(_start_peer, name)))
    return found


async def start_upstreams(
    directory: Path, cleanup: AsyncExitStack, arguments: Sequence[str] = ()
) -> tuple[Process, list[str]]:
    """Start the upstreams. Return their process and their addresses."""
    command = [sys.executable, "-m", "extproc.lab.bench.upstream", *arguments]
    process = Process("upstream", command, directory)
    cleanup.push_async_callback(process.stop)
    process.stdout.unlink(missing_ok=True)
    process.spawn()
    await until(lambda: process.stdout.read_text().endswith("\n"), 10, "upstreams to listen")
    return process, [f"127.0.0.1:{port}" for port in json.loads(process.stdout.read_text())]


async def _start_alone(
    upstreams: Sequence[str], directory: Path, cleanup: AsyncExitStack
) -> Running:
    return await _start_envoy(configs.alone(upstreams), directory, cleanup)


async def _start_lua(upstreams: Sequence[str], directory: Path, cleanup: AsyncExitStack) -> Running:
    return await _start_envoy(configs.with_lua(upstreams), directory, cleanup)


async def _start_extproc(
    transport: str,
    upstreams: Sequence[str],
    directory: Path,
    cleanup: AsyncExitStack,
    tls: KeyPair | None = None,
) -> Running:
    balancing = {"strategy": "PrefixHash"}
    model = {"name": MODEL, "endpoints": list(upstreams), "loadBalancing": balancing}
    arguments = ["--transport", transport]
    if tls is not None:
        arguments += [f"--tls-cert={tls.certificate}", f"--tls-key={tls.key}"]
    sidecar = FileSidecar({"models": [model]}, directory, arguments=arguments)
    cleanup.push_async_callback(sidecar.stop)
    await sidecar.start()
    config = configs.with_sidecar(sidecar.listen, upstreams)
    if tls is not None:
        configs.add_tls(config)
    return await _start_envoy(config, directory, cleanup, sidecar)


async def _start_envoy(
    config: configs.Config,
    directory: Path,
    cleanup: AsyncExitStack,
    sidecar: Process | None = None,
) -> Running:
    envoy = Envoy(config, directory)
    cleanup.push_async_callback(envoy.stop)
    await envoy.start()
    return Running(envoy.ports["llm"], envoy, sidecar)


async def _start_peer(
    name: str, upstreams: Sequence[str], directory: Path, cleanup: AsyncExitStack
) -> Running:
    peer = peers.Peer(name, upstreams, directory)
    cleanup.push_async_callback(peer.stop)
    await peer.start()
    return Running(peer.port, peer)
