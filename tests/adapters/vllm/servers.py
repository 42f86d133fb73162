"""Scripted endpoints on real sockets, and a scraper that reads them."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from random import Random
from time import monotonic

from extproc.adapters.vllm.readings import METRICS, MODELS
from extproc.adapters.vllm.scraper import Scraper
from extproc.core.fleet.fleet import Fleet
from extproc.core.fleet.signals import Reading
from extproc.core.routing.catalog import revise
from extproc.core.routing.router import Router
from extproc.core.schema import ModelsSpec
from extproc.core.strategies import build
from tests.adapters.vllm.expositions import BASE

Behave = Callable[[asyncio.StreamWriter], Awaitable[None]]


def response(body: bytes, status: str = "200 OK", *headers: str) -> bytes:
    """Return a complete HTTP response."""
    lines = [f"HTTP/1.1 {status}", f"content-length: {len(body)}", *headers]
    return "\r\n".join([*lines, "", ""]).encode() + body


def model_list(*adapters: str) -> bytes:
    """Return the body of /v1/models: a base model and these adapters."""
    cards = [{"id": "base", "parent": None}, *({"id": a, "parent": "base"} for a in adapters)]
    return json.dumps({"object": "list", "data": cards}).encode()


def in_use(*adapters: str) -> bytes:
    """Return metrics of an engine whose requests use these adapters."""
    labels = f'max_lora="4",running_lora_adapters="{",".join(adapters)}",waiting_lora_adapters=""'
    return BASE.encode() + f"vllm:lora_requests_info{{{labels}}} 1.0\n".encode()


class Server:
    """A healthy vLLM server, until a test changes the response of a path."""

    def __init__(self) -> None:
        self.responses: dict[str, bytes | Behave] = {
            METRICS: response(BASE.encode()),
            MODELS: response(model_list()),
        }
        self.asked: list[str] = []
        self.heads: list[bytes] = []
        self.connections = 0
        self.open = 0
        self.address = ""
        self._server: asyncio.Server | None = None

    async def start(self, port: int = 0) -> None:
        """Listen on `port`, or on a free one."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", port)
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def stop(self) -> None:
        """Stop listening; connections stay open."""
        assert self._server is not None
        self._server.close()

    def always(self, behave: bytes | Behave) -> None:
        """Use this response for every path."""
        self.responses = {METRICS: behave, MODELS: behave}

    def has(self, *adapters: str) -> None:
        """List these adapters from now on."""
        self.responses[MODELS] = response(model_list(*adapters))

    def count(self, path: str) -> int:
        """Return the number of requests for a path."""
        return self.asked.count(path)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.open += 1
        # A hanging handler must notice that the client closed; asyncio would stay half open.
        protocol = writer.transport.get_protocol()
        protocol.eof_received = writer.transport.abort  # type: ignore[attr-defined]
        try:
            with suppress(asyncio.IncompleteReadError, ConnectionError):
                while not writer.is_closing():
                    await self._answer(await reader.readuntil(b"\r\n\r\n"), writer)
        finally:
            self.open -= 1
            writer.close()

    async def _answer(self, head: bytes, writer: asyncio.StreamWriter) -> None:
        path = head.split()[1].decode()
        self.heads.append(head)
        self.asked.append(path)
        behave = self.responses[path]
        if isinstance(behave, bytes):
            writer.write(behave)
            await writer.drain()
        else:
            await behave(writer)


class Scene:
    """A router with a scraper of its endpoints."""

    def __init__(self) -> None:
        fleet = Fleet(monotonic)
        self.router = Router(fleet)
        self.results: Counter[tuple[str, str]] = Counter()
        self.scraper = Scraper(fleet, self.router.publish, self, Random(0))
        self.router.subscribe(self.scraper.set_models)

    def signal_read(self, path: str, result: str) -> None:
        """Count a reading."""
        self.results[path, result] += 1

    def configure(self, *models: dict[str, object]) -> None:
        """Put these models in force."""
        spec = ModelsSpec.model_validate({"models": models})
        router = self.router
        self.router.publish(
            revise(
                router.catalog, spec.models, lambda one: build(one, Random(0), router.fleet.signals)
            )
        )

    def reading(self, address: str) -> Reading | None:
        """Return the last reading of an endpoint."""
        return self.router.fleet.signals.latest(address)

    def has_read(self, *servers: Server) -> bool:
        """Return True if each of these has a reading."""
        return all(self.reading(server.address) is not None for server in servers)

    @property
    def adapters(self) -> dict[str, set[str]]:
        """Return the adapters by model."""
        models = self.router.catalog.models.items()
        return {name: set(model.snapshot.adapters) for name, model in models}


def model(
    *servers: Server | str,
    name: str = "base",
    strategy: str = "LeastQueue",
    busy: float = 0.05,
    idle: float = 0.05,
    **more: object,
) -> dict[str, object]:
    """Return a model of the document."""
    addresses: Iterable[str] = (s.address if isinstance(s, Server) else s for s in servers)
    signals = {"intervalSeconds": busy, "idleIntervalSeconds": idle}
    signals["staleAfterSeconds"] = max(3.0, 2 * busy, 2 * idle)
    balancing = {"strategy": strategy, "signals": signals}
    return {"name": name, "endpoints": list(addresses), "loadBalancing": balancing, **more}
