"""A stack with real engines: requests to it and its state."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field

import aiohttp

from extproc.lab.real_vllm.engines import MAX_RUNNING, RealFleet, RealVllm
from extproc.lab.stack.envoy import Envoy
from extproc.lab.stack.processes import until
from extproc.lab.stack.sidecar import FileSidecar
from tests.e2e.scene import CHAT, MODEL, HttpResponse, Json

ENGINES = 2

# More requests than the engines run at once, so that clients also abort waiting requests.
STREAMS = ENGINES * MAX_RUNNING + 6
# Enough tokens until the request is aborted: a minute on an idle machine.
ENDLESS = 15_000

# Adapters of the engines at their start, and one that a test loads.
RESIDENT = "tiny-sql"
LOADED_LATER = "tiny-poet"

# Real engines on few cores can stall for seconds.
AGREEMENT_SECONDS = 60.0


def _unchanged(config: Json) -> None:
    del config


@dataclass(frozen=True)
class Options:
    """Differences of a scene from the recommended configuration."""

    strategy: str = "PrefixHash"
    published_rule: str = ""
    """A published rule instead of the strategy."""
    prefix_hash: Mapping[str, object] = field(default_factory=dict)
    adapters: Sequence[str] = ()
    """Adapters of all engines in the models document."""
    signals: Mapping[str, object] = field(default_factory=dict)
    change_config: Callable[[Json], None] = _unchanged

    def models(self, addresses: Sequence[str]) -> Json:
        """Return the models document with these endpoints."""
        balancing: Json = {"strategy": self.strategy, "prefixHash": dict(self.prefix_hash)}
        if self.signals:
            balancing["signals"] = dict(self.signals)
        model: Json = {"name": MODEL, "endpoints": list(addresses), "loadBalancing": balancing}
        if self.adapters:
            model["adapters"] = list(self.adapters)
        return {"models": [model]}


@dataclass(frozen=True)
class VllmScene:
    """The Envoy and the sidecar of one test, in front of the engines that all tests share."""

    envoy: Envoy
    sidecar: FileSidecar
    engines: RealFleet
    session: aiohttp.ClientSession

    @property
    def first(self) -> RealVllm:
        """The first of the engines."""
        return self.engines.engines[0]

    async def send(self, body: Json, headers: Mapping[str, str] | None = None) -> HttpResponse:
        """Send one request and read its response to the end."""
        async with self.session.post(CHAT, json=body, headers=headers) as reply:
            return HttpResponse(reply.status, reply.headers, await reply.read())

    def begin(self, body: Json) -> asyncio.Task[HttpResponse]:
        """Start a streamed request and return the task that reads its response."""
        return asyncio.create_task(self.send({**body, "stream": True}))

    async def use(self, options: Options) -> None:
        """Change the models document and wait until the change takes effect."""
        self.sidecar.write_models(options.models(self.engines.addresses))

        async def in_force() -> bool:
            return bool((await self.sidecar.state())[MODEL]["strategy"] == options.strategy)

        await until(in_force, 10, f"{options.strategy} to be in force")

    async def agree_on_inflight(self, expected: int) -> None:
        """Wait until sidecar and engines both count `expected` requests, on the same endpoints."""

        async def agree() -> bool:
            ours, theirs = await self.sidecar.inflight(), await self.engines.inflight()
            return ours == theirs and sum(ours.values()) == expected

        try:
            await until(agree, AGREEMENT_SECONDS, f"{expected} requests in flight")
        except TimeoutError as error:
            ours, theirs = await self.sidecar.inflight(), await self.engines.inflight()
            raise AssertionError(f"{error}: sidecar {ours}, engines {theirs}") from None

    async def access_log(self, lines: int) -> list[Json]:
        """Wait for that many lines of the access log and return it."""
        await until(lambda: len(self.envoy.access_log()) >= lines, 5, f"{lines} log lines")
        return self.envoy.access_log()


async def abort(requests: Sequence[asyncio.Task[HttpResponse]]) -> None:
    """Disconnect the clients of some requests."""
    for request in requests:
        request.cancel()
    await asyncio.gather(*requests, return_exceptions=True)


Launch = Callable[..., Awaitable[VllmScene]]
RecordFigure = Callable[[str, str], None]
