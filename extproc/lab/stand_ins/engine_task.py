"""The asyncio driver of a simulated engine: waits for each step and distributes its tokens."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from itertools import count

from extproc.lab.engine.kv_cache import BlockId
from extproc.lab.engine.replica import Replica, SimRequest
from extproc.lab.stand_ins.lora_gauge import LoraGauge

_MAX_LAG_SECONDS = 0.25
"""Longest delay that the driver makes up for. After a longer delay, for example a stopped process,
it would otherwise generate the missed tokens all at once."""


class Generation:
    """The tokens of one request as the engine generates them, for one reader."""

    def __init__(self, request_id: int, steps_before: float) -> None:
        """`steps_before` is the planned time of the engine's steps that began earlier."""
        self.request_id = request_id
        self.cached_tokens = 0
        self.submitted_at = time.monotonic()
        self.steps_before = steps_before
        self.finished = False
        self._produced = 0
        self._taken = 0
        self._waiter: asyncio.Future[None] | None = None

    async def more(self) -> int:
        """Wait for new tokens and return their number; 0 after the last one."""
        if self._produced == self._taken and not self.finished:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        new = self._produced - self._taken
        self._taken = self._produced
        return new

    async def all(self) -> None:
        """Wait for the last token."""
        while not self.finished:
            await self.more()

    def _add(self, finished: bool) -> None:
        self._produced += 1
        self.finished = finished
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class EngineTask:
    """Driver of one replica, in real time or `time_scale` times faster."""

    def __init__(
        self, replica: Replica, time_scale: float = 1.0, gauge: LoraGauge | None = None
    ) -> None:
        self.replica = replica
        self.gauge = gauge
        self._time_scale = time_scale
        self._steps_seconds = 0.0  # planned, of all steps that have begun
        self._ids = count()
        self._generations: dict[int, Generation] = {}
        self._submitted = asyncio.Event()
        self._loads: list[asyncio.Future[None]] = []

    def submit(
        self, prompt_tokens: int, output_tokens: int, blocks: Sequence[BlockId], adapter: str = ""
    ) -> Generation:
        """Queue a request. Raises ValueError if the engine can never serve it."""
        request_id = next(self._ids)
        self.replica.submit(SimRequest(request_id, prompt_tokens, output_tokens, blocks, adapter))
        generation = Generation(request_id, self._steps_seconds)
        self._generations[request_id] = generation
        self._submitted.set()
        return generation

    def abort(self, generation: Generation) -> None:
        """End a request early; do nothing if it has finished."""
        self.replica.abort(generation.request_id)
        if self._generations.pop(generation.request_id, None) is not None:
            self._stamp()

    async def load_adapter(self, adapter: str) -> None:
        """Load an adapter between two steps, and return once it is loaded."""
        self.replica.load_adapter(adapter)
        loaded = asyncio.get_running_loop().create_future()
        self._loads.append(loaded)
        self._submitted.set()
        await loaded

    async def run(self) -> None:
        """Run steps whenever there are requests, until cancelled."""
        while True:
            await self._submitted.wait()
            self._submitted.clear()
            await self._work()

    async def _work(self) -> None:
        """Run steps until the replica is idle.

        The deadline of a step counts from the previous deadline, not from now: all replicas share
        the event loop, and its small delays must not add up. For the same reason, the metrics have
        the steps' planned times: on a busy machine, a GPU is as fast as before.
        """
        now = asyncio.get_running_loop().time
        deadline = now()
        while (planned := self.replica.begin_step()) is not None:
            loads, self._loads = self._loads, []
            seconds = planned / self._time_scale
            self._steps_seconds += seconds
            deadline = max(deadline + seconds, now() - _MAX_LAG_SECONDS)
            await asyncio.sleep(max(0.0, deadline - now()))
            self._finish_step(seconds)
            for load in loads:
                if not load.done():  # cancelled if its client has disconnected
                    load.set_result(None)

    def _finish_step(self, seconds: float) -> None:
        tokens = self.replica.finish_step()
        self.replica.took(seconds, tokens)
        finished = set(tokens.finished)
        for request_id, cached in tokens.first.items():
            generation = self._generations[request_id]
            generation.cached_tokens = cached
            self.replica.first_token_seconds_total += self._waited(generation)
        for request_id in tokens.request_ids:
            self._generations[request_id]._add(request_id in finished)
        for request_id in finished:
            del self._generations[request_id]
        if tokens.request_ids or self.replica.running:
            self._stamp()  # not if an idle engine only loaded an adapter

    def _waited(self, generation: Generation) -> float:
        """Return the seconds that a request waited for its first token.

        A step that makes up for a delay ends early. It still counts with its planned time.
        """
        planned = self._steps_seconds - generation.steps_before
        return max(planned, time.monotonic() - generation.submitted_at)

    def _stamp(self) -> None:
        if self.gauge is not None:
            self.gauge.stamp(time.time())
