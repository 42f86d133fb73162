"""The decision alone, in this process and without a transport: its CPU time and its p99."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from random import Random
from statistics import median
from time import perf_counter, process_time

from extproc.core.conversation.state_machine import Conversation
from extproc.core.fleet.fleet import Fleet
from extproc.core.routing.catalog import Catalog, revise
from extproc.core.routing.router import Router
from extproc.core.schema import ModelsSpec
from extproc.core.strategies import build
from extproc.edge.ext_proc.codec import decode, encode
from extproc.edge.wire.external_processor_pb2 import ProcessingRequest
from extproc.edge.wire.processing_mode_pb2 import ProcessingMode
from extproc.lab.bench.grid import Grid
from extproc.lab.bench.routers import BusyRouter, documents
from extproc.lab.bench.wire import MODEL, PATH, PREFIXES, body

HEADERS = 14
SHOWN = 65_536
"""Bytes shown of a body: Envoy shows at most twice its buffer."""

SIZES = {"1 kB": 1_000, "32 kB": 32_000, "400 kB (head)": 400_000}
ENDPOINTS = (2, 8, 100)
STRATEGIES = ("PrefixHash", "PrefixCache")

_WINDOWS = 20
_IN_FLIGHT = 4  # for each endpoint


class DecisionPath:
    """Requests as Envoy sends them, from their bytes to the bytes of the replies."""

    def __init__(self, strategy: str, endpoints: int, size: int) -> None:
        addresses = [f"10.0.{i // 250}.{i % 250 + 1}:8000" for i in range(endpoints)]
        balancing = {"strategy": strategy}
        model = {"name": MODEL, "endpoints": addresses, "loadBalancing": balancing}
        spec = ModelsSpec.model_validate({"models": [model]})
        self._rng = rng = Random(1)
        fleet = Fleet()
        self._router = router = Router(fleet)
        router.publish(revise(Catalog(), spec.models, lambda one: build(one, rng, fleet.signals)))
        self._messages = messages(size)
        # As many requests stay in flight as on a loaded fleet, so that the bound has an effect.
        self._open = deque(Conversation(router, rng) for _ in range(_IN_FLIGHT * endpoints))

    def run(self, requests: int) -> None:
        """Decode, decide, encode, and release an earlier request."""
        for number in range(requests):
            conversation = Conversation(self._router, self._rng)
            for message in self._messages[number % PREFIXES]:
                for answer in conversation.receive(decode(message)):
                    encode(answer)
            self._open.append(conversation)
            self._open.popleft().close()


def messages(size: int) -> list[tuple[bytes, bytes]]:
    """Return the messages of each request: headers and body, as with envoy/envoy.yaml."""
    headers = _headers_message(whole=size <= SHOWN)
    return [(headers, _body_message(body(size, key))) for key in range(PREFIXES)]


def _headers_message(*, whole: bool) -> bytes:
    request = ProcessingRequest()
    config = request.protocol_config
    config.request_body_mode = ProcessingMode.STREAMED if whole else ProcessingMode.BUFFERED_PARTIAL
    config.send_body_without_waiting_for_header_response = True
    headers = request.request_headers.headers.headers
    pairs = {":path": PATH, ":method": "POST", "content-type": "application/json"}
    pairs |= {f"x-header-{i}": "some value" for i in range(HEADERS - len(pairs))}
    for name, value in pairs.items():
        headers.add(key=name, raw_value=value.encode())
    return request.SerializeToString()


def _body_message(content: bytes) -> bytes:
    request = ProcessingRequest()
    request.request_body.body = content[:SHOWN]
    request.request_body.end_of_stream = len(content) <= SHOWN
    return request.SerializeToString()


def grid(rounds: int) -> Grid:
    """Return CPU times by number of endpoints and body size."""
    rows = []
    for endpoints in ENDPOINTS:
        costs = (_microseconds(endpoints, size, rounds) for size in SIZES.values())
        rows.append([str(endpoints), *(f"{cost:.0f}" for cost in costs)])
    title = "the decision alone: decode, decide, encode, release; PrefixHash; CPU us per request"
    return Grid(title, ["endpoints", *SIZES], rows, left=0)


def _microseconds(endpoints: int, size: int, rounds: int) -> float:
    path = DecisionPath("PrefixHash", endpoints, size)
    path.run(rounds // 10)
    started = process_time()
    path.run(rounds)
    return (process_time() - started) / rounds * 1e6


def p99_microseconds(strategy: str, endpoints: int, times: int) -> float:
    """Return the wall-clock p99 of choosing an endpoint for a known, parsed prompt.

    Other processes may interrupt a decision. So this is the median of the p99s of many short
    periods.
    """
    fleet = BusyRouter(strategy, endpoints)
    if strategy == "PrefixCache":
        fleet.fill(Random(2))
    resolved_requests = [fleet.resolve(document) for document in documents()]
    for resolved in resolved_requests:
        fleet.decide(resolved)
    found = []
    for window in range(_WINDOWS):
        taken = []
        for number in range(window, window + max(times // _WINDOWS, 100)):
            resolved = resolved_requests[number % len(resolved_requests)]
            started = perf_counter()
            fleet.decide(resolved)
            taken.append(perf_counter() - started)
        found.append(_p99(taken))
    return median(found) * 1e6


def _p99(values: Sequence[float]) -> float:
    return sorted(values)[len(values) * 99 // 100]
