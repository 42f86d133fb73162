"""What the tests say to a stack with real engines, and what they look at."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field

import aiohttp

from extproc.lab.real_vllm.engines import MAX_RUNNING, RealFleet, RealVllm
from extproc.lab.stack.envoy import Envoy
from extproc.lab.stack.processes import until
from extproc.lab.stack.sidecar import FileSidecar
from tests.e2e.scene import CHAT, MODEL, Json, Reply

ENGINES = 2

# More than the engines run at once, so that some wait, and clients abort while they do.
STREAMS = ENGINES * MAX_RUNNING + 6
# Tokens that last until the request is aborted: a minute, alone on the machine.
ENDLESS = 15_000

# Adapters that the engines know from the start, and one that a test has them load.
RESIDENT = "tiny-sql"
LOADED_LATER = "tiny-poet"

# With real engines on few cores, seconds pass in which nothing happens.
AGREEMENT_SECONDS = 60.0


def _unchanged(config: Json) -> None:
    del config


@dataclass(frozen=True)
class Options:
    """How a scene differs from the recommended one."""

    strategy: str = "PrefixHash"
    prefix_hash: Mapping[str, object] = field(default_factory=dict)
    adapters: Sequence[str] = ()
    """That every engine has, by the models document."""
    signals: Mapping[str, object] = field(default_factory=dict)
    change_config: Callable[[Json], None] = _unchanged

    def models(self, addresses: Sequence[str]) -> Json:
        """The models document over these endpoints."""
        balancing: Json = {"strategy": self.strategy, "prefixHash": dict(self.prefix_hash)}
        if self.signals:
            balancing["signals"] = dict(self.signals)
        model: Json = {"name": MODEL, "endpoints": list(addresses), "loadBalancing": balancing}
        if self.adapters:
            model["adapters"] = list(self.adapters)
        return {"models": [model]}


@dataclass(frozen=True)
class VllmScene:
    """Envoy and sidecar of one test, before the engines that all tests share."""

    envoy: Envoy
    sidecar: FileSidecar
    engines: RealFleet
    session: aiohttp.ClientSession

    @property
    def first(self) -> RealVllm:
        """One of the engines."""
        return self.engines.engines[0]

    async def send(self, body: Json, headers: Mapping[str, str] | None = None) -> Reply:
        """One request, its answer read to the end."""
        async with self.session.post(CHAT, json=body, headers=headers) as reply:
            return Reply(reply.status, reply.headers, await reply.read())

    def begin(self, body: Json) -> asyncio.Task[Reply]:
        """A streamed request under way, in whichever phase it may be."""
        return asyncio.create_task(self.send({**body, "stream": True}))

    async def use(self, options: Options) -> None:
        """Changes the models document, and waits until the change is in force."""
        self.sidecar.write_models(options.models(self.engines.addresses))

        async def in_force() -> bool:
            return bool((await self.sidecar.state())[MODEL]["strategy"] == options.strategy)

        await until(in_force, 10, f"{options.strategy} to be in force")

    async def agree_on_inflight(self, expected: int) -> None:
        """Waits until sidecar and engines both hold `expected` requests, on the same endpoints."""

        async def agree() -> bool:
            ours, theirs = await self.sidecar.inflight(), await self.engines.inflight()
            return ours == theirs and sum(ours.values()) == expected

        try:
            await until(agree, AGREEMENT_SECONDS, f"{expected} requests in flight")
        except TimeoutError as error:
            ours, theirs = await self.sidecar.inflight(), await self.engines.inflight()
            raise AssertionError(f"{error}: sidecar {ours}, engines {theirs}") from None

    async def access_log(self, lines: int) -> list[Json]:
        """The access log, once it has that many lines."""
        await until(lambda: len(self.envoy.access_log()) >= lines, 5, f"{lines} log lines")
        return self.envoy.access_log()


async def abort(requests: Sequence[asyncio.Task[Reply]]) -> None:
    """Their clients hang up."""
    for request in requests:
        request.cancel()
    await asyncio.gather(*requests, return_exceptions=True)


Launch = Callable[..., Awaitable[VllmScene]]
Tell = Callable[[str, str], None]
