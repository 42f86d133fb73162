"""One sidecar's decisions at a constant rate, with or without shared state, and their CPU time.

A process of its own, without a transport, so that the difference is the cost of sharing.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from random import Random
from time import monotonic, process_time

from prometheus_client import CollectorRegistry

from extproc.adapters.observability.shared_state_metrics import SharedStateMetrics
from extproc.adapters.shared_state.link import SharedStateLink
from extproc.adapters.shared_state.server import SharedStateServer
from extproc.app import tune_garbage_collector
from extproc.core.fleet.ledger import Lease
from extproc.core.request.blocks import BLOCK_BYTES, Prompt
from extproc.core.routing.resolved_request import ResolvedRequest
from extproc.lab.bench.routers import BusyRouter, random_blocks

ENDPOINTS = 8
BLOCKS = 32
"""Blocks of a prompt, about 2,000 tokens."""

_TURNS = 8
"""Prompts of a conversation, each of which has a few blocks more."""

_SERVICE_SECONDS = 0.5
_TICK_SECONDS = 0.005
_WARM_UP_SECONDS = 1.5


class _Traffic:
    """Conversations through one router."""

    def __init__(self, router: BusyRouter, rate: float) -> None:
        self._router = router.router
        self._rate = rate
        self._rng = Random()
        self._known = router.resolve(None)
        self._blocks: list[int] = []
        self._turn = _TURNS
        self.requests = 0

    async def run(self, seconds: float) -> None:
        """Send requests for that time."""
        loop, began, sent = asyncio.get_running_loop(), monotonic(), 0
        while (now := monotonic()) < began + seconds:
            while sent < (now - began) * self._rate:
                sent += 1
                lease = self._router.decide(self._next()).lease
                loop.call_later(_SERVICE_SECONDS, _end, lease)
            await asyncio.sleep(_TICK_SECONDS)
        self.requests = sent

    def _next(self) -> ResolvedRequest:
        if self._turn >= _TURNS:
            self._turn, self._blocks = 0, random_blocks(self._rng, BLOCKS - _TURNS)
        self._turn += 1
        self._blocks = [*self._blocks, *random_blocks(self._rng, 1)]
        prompt = Prompt(self._blocks, len(self._blocks) * BLOCK_BYTES)
        return self._known._replace(prompt=prompt, key=self._blocks[0])


def _end(lease: Lease) -> None:
    lease.finish_prefill()
    lease.release()


async def measure(url: str, rate: float, seconds: float) -> dict[str, float]:
    """Return CPU seconds, requests, and bytes of the sidecar; without a URL it shares nothing."""
    router = BusyRouter("PrefixCache", ENDPOINTS)
    registry = CollectorRegistry()
    metrics = SharedStateMetrics(registry)
    link = None
    if url:
        fleet = router.router.fleet
        link = SharedStateLink(SharedStateServer(url, "bench"), fleet, metrics, monotonic)
        await link.start(2)
    traffic = _Traffic(router, rate)
    await traffic.run(min(_WARM_UP_SECONDS, seconds))
    tune_garbage_collector()
    before, written = process_time(), _written(registry)
    await traffic.run(seconds)
    spent, written = process_time() - before, _written(registry) - written
    lag = link.document()["lag_seconds"] if link else 0.0
    if link:
        await link.close()
    return {"cpu": spent, "requests": traffic.requests, "bytes": written, "lag": lag}


def _written(registry: CollectorRegistry) -> float:
    name = "extproc_shared_state_bytes_total"
    return registry.get_sample_value(name, {"direction": "out"}) or 0.0


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line of the process that is measured."""
    parser = argparse.ArgumentParser(prog="python -m extproc.lab.bench.sharing_sidecar")
    parser.add_argument("--url", default="", help="the shared state (default: none)")
    parser.add_argument("--rate", type=float, required=True, help="requests per second")
    parser.add_argument("--seconds", type=float, required=True)
    asked = parser.parse_args(arguments)
    loop: Callable[[], asyncio.AbstractEventLoop] = import_module("uvloop").new_event_loop
    with asyncio.Runner(loop_factory=loop) as runner:
        found = runner.run(measure(asked.url, asked.rate, asked.seconds))
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
