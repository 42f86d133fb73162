"""A router with requests that come and go, without a transport, and its CPU time."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Mapping
from functools import cache
from random import Random
from time import process_time

from extproc.core.fleet.fleet import Fleet
from extproc.core.fleet.ledger import Lease
from extproc.core.fleet.report import Load, Report
from extproc.core.request.blocks import BLOCK_BYTES
from extproc.core.request.json_document import Document, parse_document
from extproc.core.routing.catalog import Catalog, revise
from extproc.core.routing.resolved_request import ResolvedRequest
from extproc.core.routing.router import Router
from extproc.core.schema import ModelsSpec
from extproc.core.strategies import build

BLOCKS = 256
"""Blocks of each prompt: as many as Envoy shows of a large body."""

SYSTEM_PROMPTS, USERS = 20, 10
_SYSTEM_BYTES = 12_000
_IN_FLIGHT = 4  # for each endpoint

ROUNDS = 9
"""Rounds, of which the best counts."""


class BusyRouter:
    """A router with one model, its endpoints, and requests that start and end.

    Each of the `sidecars` has four requests in flight on each endpoint. They share no state.
    """

    def __init__(self, strategy: str, endpoints: int, sidecars: int = 1) -> None:
        rng = Random(1)
        self.addresses = [f"10.0.{i // 250}.{i % 250 + 1}:8000" for i in range(endpoints)]
        fleet = Fleet()
        self.signals = fleet.signals
        self.router = Router(fleet, rng=rng)
        load_balancing = {"strategy": strategy}
        model = {"name": "m", "endpoints": self.addresses, "loadBalancing": load_balancing}
        spec = ModelsSpec.model_validate({"models": [model]})
        catalog = revise(Catalog(), spec.models, lambda one: build(one, rng, self.signals))
        self.router.publish(catalog)
        self.signals.set_endpoints(self.addresses)
        report = Report(Load(0, 0.5), sidecars * _IN_FLIGHT, block_size=16, blocks=28_000)
        for address in self.addresses:
            self.signals.record_scrape(address, report, _IN_FLIGHT)
        self._leases: deque[Lease] = deque()

    def resolve(self, document: Document | None) -> ResolvedRequest:
        """Return the request as the strategy sees it."""
        return self.router.resolve("m", document, {})

    def decide(self, resolved: ResolvedRequest) -> None:
        """Add a request and, once there are enough, end the oldest."""
        self._leases.append(self.router.decide(resolved).lease)
        if len(self._leases) > _IN_FLIGHT * len(self.addresses):
            self._leases.popleft().release()

    def fill(self, rng: Random) -> None:
        """Fill the index of every endpoint with other prompts, so that each new one evicts."""
        prefixes = self.signals.prefixes
        for address in self.addresses:
            before = -1
            while prefixes.size(address) > before:
                before = prefixes.size(address)
                prefixes.sent(address, random_blocks(rng, BLOCKS))


def bodies() -> list[bytes]:
    """Return the heads of requests that share system prompts."""
    return [_body(number % SYSTEM_PROMPTS, number) for number in range(SYSTEM_PROMPTS * USERS)]


def _body(system: int, user: int) -> bytes:
    shared = f"system {system} " + "lorem ipsum " * (_SYSTEM_BYTES // 12)
    own = f"user {user} " + "dolor sit amet " * (BLOCKS * BLOCK_BYTES // 15)
    own = own[: BLOCKS * BLOCK_BYTES - len(shared)]  # the roles add a little
    messages = [{"role": "system", "content": shared}, {"role": "user", "content": own}]
    return json.dumps({"model": "m", "messages": messages}).encode()[:-3]


def random_blocks(rng: Random, number: int) -> list[int]:
    """Return the blocks of a new prompt."""
    return [rng.getrandbits(64) for _ in range(number)]


@cache
def documents() -> tuple[Document, ...]:
    """Return the same requests, parsed."""
    return tuple(parse_document(head, complete=False) for head in bodies())


def best(ways: Mapping[str, Callable[[], object]], times: int) -> dict[str, float]:
    """Return the microseconds per call of each function, in its best round of `times` calls."""
    found = dict.fromkeys(ways, float("inf"))
    for _ in range(ROUNDS):
        for name, call in ways.items():
            started = process_time()
            for _ in range(times):
                call()
            found[name] = min(found[name], (process_time() - started) / times * 1e6)
    return found
