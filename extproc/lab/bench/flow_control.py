"""The cost of a request that waits for room on an endpoint."""

from __future__ import annotations

import json
import tracemalloc
from collections import deque
from collections.abc import Sequence
from functools import partial
from random import Random
from time import process_time

from extproc.core.conversation.events import BodyMode, Event, Kind, Modes, Replies
from extproc.core.conversation.state_machine import Conversation
from extproc.core.fleet.fleet import Fleet
from extproc.core.flow_control.flow_control import FlowControl
from extproc.core.routing.catalog import Catalog, revise
from extproc.core.routing.decision import Decision
from extproc.core.routing.router import Router
from extproc.core.schema import ModelsSpec
from extproc.core.strategies import build
from extproc.lab.bench.grid import Grid

QUEUED = (100, 1_000, 10_000)
ENDPOINTS = 100
STRATEGIES = ("PrefixHash", "PrefixCache")
_TENANTS = 50
_MODES = Modes(BodyMode.AHEAD)
_HEADERS = {
    ":path": b"/v1/chat/completions",
    ":method": b"POST",
    "content-type": b"application/json",
    "content-length": b"1000",
}


class _Queue:
    """A model whose endpoints are full, and the conversations that wait."""

    def __init__(self, strategy: str) -> None:
        self._now = 0.0
        rng, fleet = Random(1), Fleet(lambda: self._now)
        self._router = Router(fleet)
        self._flow = FlowControl(self._router, lambda: self._now)
        model = {
            "name": "m",
            "endpoints": [f"10.0.{one // 250}.{one % 250 + 1}:8000" for one in range(ENDPOINTS)],
            "loadBalancing": {"strategy": strategy},
            "flowControl": {"maxInflight": 1},
        }
        spec = ModelsSpec.model_validate({"models": [model]})
        self._router.publish(
            revise(Catalog(), spec.models, lambda one: build(one, rng, fleet.signals))
        )
        self._rng = rng
        self._number = 0
        self._waiting: list[Conversation] = []
        self._running = deque(self._open() for _ in range(ENDPOINTS))

    def fill(self, number: int) -> None:
        """Let this number of requests wait."""
        self._waiting = [self._open() for _ in range(number)]
        for one in self._waiting:
            one.send = partial(self._released, one)

    def drain(self) -> None:
        """Serve all requests that wait, each after the end of another."""
        for _ in range(len(self._waiting)):
            self._running.popleft().close()
            self._flow.run()
        assert not self._flow.waiting
        self._waiting.clear()

    def _released(self, conversation: Conversation, _: Replies) -> None:
        self._running.append(conversation)

    def _open(self) -> Conversation:
        self._number += 1
        text = f"question {self._number} " + "x" * 800
        body = json.dumps({"model": "m", "messages": [{"role": "user", "content": text}]}).encode()
        tenant = str(self._number % _TENANTS).encode()
        conversation = Conversation(self._router, self._rng, flow=self._flow)
        headers = {**_HEADERS, "x-gateway-inference-fairness-id": tenant}
        conversation.receive(Event(Kind.REQUEST_HEADERS, headers, modes=_MODES))
        conversation.receive(Event(Kind.REQUEST_BODY, body=body, end_of_stream=True))
        assert conversation.queued is not None or isinstance(conversation.verdict, Decision)
        return conversation


def grid(queued: Sequence[int] = QUEUED) -> Grid:
    """Return CPU time and memory for each request, by the number of those that wait."""
    rows = []
    for strategy in STRATEGIES:
        for number in queued:
            queue = _Queue(strategy)
            queue.fill(100)  # warms up
            queue.drain()
            begin = process_time()
            queue.fill(number)
            filled = process_time()
            queue.drain()
            drained = process_time()
            costs = [1e6 * (filled - begin) / number, 1e6 * (drained - filled) / number]
            rows.append(
                [strategy, f"{number:,}", *(f"{one:.0f}" for one in costs), _memory(queue, number)]
            )
    headings = ["strategy", "queued", "to wait, us", "to be dispatched, us", "memory, kB"]
    title = f"requests of 1 kB that wait for room on {ENDPOINTS} endpoints; for each request"
    return Grid(title, headings, rows, left=1)


def _memory(queue: _Queue, number: int) -> str:
    """Return the memory of each request that waits, in kB."""
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        queue.fill(number)
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    queue.drain()
    return f"{(after - before) / number / 1000:.1f}"
