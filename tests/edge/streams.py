"""Streams without a network, and what serves them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random

from extproc.adapters.telemetry import Telemetry
from extproc.core.router import Router
from extproc.core.spec import ModelSpec
from extproc.edge.service import ExternalProcessor
from tests.core.builders import router
from tests.edge.envoy import Reply


class Sidecar:
    """The service with its router and its metrics."""

    def __init__(self, *specs: ModelSpec) -> None:
        self.router: Router = router(*specs)
        self.telemetry = Telemetry(self.router)
        self.processor = ExternalProcessor(self.router, self.telemetry, Random(0))

    @property
    def in_flight(self) -> int:
        return sum(self.router.ledger.loads.values())


class MemoryStream:
    """A stream that the test writes and reads."""

    def __init__(self, *messages: bytes | None) -> None:
        self.incoming: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.replies: list[Reply] = []
        for message in messages:
            self.incoming.put_nowait(message)

    async def read(self) -> bytes | None:
        return await self.incoming.get()

    async def write(self, message: bytes) -> None:
        self.replies.append(Reply(message))


async def eventually(condition: Callable[[], bool]) -> None:
    """Waits for another task or process to make it true."""
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.005)
