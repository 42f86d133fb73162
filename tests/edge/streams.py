"""The ext_proc service without a network."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from time import monotonic

from extproc.adapters.observability.log_sampler import LogSampler
from extproc.adapters.observability.telemetry import Telemetry
from extproc.core.flow_control.flow_control import FlowControl
from extproc.core.routing.router import Router
from extproc.core.schema import ModelSpec
from extproc.edge.ext_proc.service import ExternalProcessor
from tests.core.builders import router
from tests.edge.envoy import Reply
from tests.extent import PATIENCE


class Sidecar:
    """The service with its router and its metrics."""

    def __init__(
        self,
        *specs: ModelSpec,
        sampler: LogSampler | None = None,
        pass_unknown: bool = False,
        flow: bool = False,
    ) -> None:
        """With `flow`, requests wait for room; a test runs a `Dispatcher` to release them."""
        self.router: Router = router(*specs)
        self.telemetry = Telemetry(self.router.fleet, lambda: self.router.catalog)
        self.flow = FlowControl(self.router, monotonic)
        self.processor = ExternalProcessor(
            self.router,
            self.telemetry,
            Random(0),
            sampler=sampler,
            pass_unknown=pass_unknown,
            flow=self.flow if flow else None,
        )

    def serve(self, *messages: bytes) -> list[Reply]:
        """Return the replies to a stream of these messages."""
        session = self.processor.open(lambda _: None)
        try:
            return [Reply(reply) for each in messages for reply in session.receive(each)]
        finally:
            session.close()

    @property
    def in_flight(self) -> int:
        return sum(self.router.fleet.ledger.loads.values())


async def eventually(condition: Callable[[], bool]) -> None:
    """Wait until another task or process makes the condition true."""
    async with asyncio.timeout(PATIENCE):
        while not condition():
            await asyncio.sleep(0.005)
