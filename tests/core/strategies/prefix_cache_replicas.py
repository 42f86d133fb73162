"""Endpoints and prompts for the tests of PrefixCache."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random
from typing import Any

import pytest
import xxhash

from extproc.compiled import COMPILED
from extproc.core.fleet.endpoint import Endpoint, Snapshot
from extproc.core.fleet.engine_times import Slowness
from extproc.core.fleet.fleet import Fleet
from extproc.core.fleet.ledger import Lease, Ledger
from extproc.core.fleet.report import Load, Report
from extproc.core.fleet.signals import Signals
from extproc.core.fleet.weights import WEIGHTS
from extproc.core.request.blocks import BLOCK_BYTES, Prompt
from extproc.core.schema import SignalsSpec
from extproc.core.strategies import Candidate, Query
from extproc.core.strategies.prefix_cache import PrefixCache
from extproc.core.strategies.prefix_costs import PrefixCosts
from extproc.core.strategies.tied_requests import TiedRequests
from tests.core.builders import endpoints
from tests.core.clock import Clock

TOKENS = BLOCK_BYTES // 4  # in a block


def hashes(name: str, count: int) -> list[int]:
    return [xxhash.xxh64_intdigest(f"{name} {number}".encode()) for number in range(count)]


def prompt(name: str, tokens: int = 4000, *, after: Prompt | None = None) -> Prompt:
    """Return a prompt that shares only the prompt before it (`after`) with those of other names."""
    before = after or Prompt((), 0)
    blocks = [*before.blocks, *hashes(name, tokens // TOKENS)]
    return Prompt(blocks, before.bytes + 4 * tokens, before.system_blocks)


def rules(name: str, tokens: int) -> Prompt:
    """Return a system prompt, as the beginning of other prompts."""
    return prompt(name, tokens)._replace(system_blocks=tokens // TOKENS)


def chain_of(name: str) -> Sequence[int]:
    return prompt(name).blocks


def key(name: str) -> int:
    return xxhash.xxh64_intdigest(name.encode())


def query(name: str, tokens: int = 4000, *, after: Prompt | None = None) -> Query:
    return Query(key=key(name), prompt=prompt(name, tokens, after=after))


class Replicas:
    """Endpoints with one sidecar. Its requests are in flight until a test releases them."""

    def __init__(self, count: int = 4, *, replication: int = 256, **options: Any) -> None:
        self.clock = Clock()
        self.snapshot = Snapshot.of(endpoints(count), replication)
        self.addresses = [endpoint.address for endpoint in self.snapshot.endpoints]
        self.ledger = Ledger()
        self.signals = Signals(self.clock, self.ledger)
        self.signals.set_endpoints(self.addresses)
        self.fleet = Fleet(ledger=self.ledger, signals=self.signals)
        self.strategy = PrefixCache(self.signals, SignalsSpec(), Random(0), **options)
        self.leases: list[Lease] = []

    def order(self, asked: Query, snapshot: Snapshot | None = None) -> list[Candidate]:
        return list(self.strategy.rank(asked, snapshot or self.snapshot, self.ledger.loads))

    def first(self, asked: Query) -> Candidate:
        return next(self.strategy.rank(asked, self.snapshot, self.ledger.loads))

    def send(self, asked: Query) -> Candidate:
        """Send a request without a response yet."""
        best = self.first(asked)
        request = self.strategy.describe(asked, best)
        self.leases.append(self.fleet.send("llama", best.endpoint, request))
        return best

    def serve(self, asked: Query) -> Candidate:
        """Send a request and end it."""
        best = self.send(asked)
        self.leases.pop().release()
        return best

    def load(self, endpoint: Endpoint, requests: int, backlog: float = 0.0) -> None:
        """Put requests on an endpoint, the first of which have this many tokens to compute."""
        for number in range(requests):
            lease = self.ledger.acquire("llama", endpoint)
            if not number and backlog:
                lease.prefill = self.signals.backlog.add(endpoint.address, backlog)
            self.leases.append(lease)

    def scrape(
        self,
        endpoint: Endpoint,
        running: float = 0,
        *,
        cache_tokens: int | None = None,
        **load: float,
    ) -> None:
        """Record a scrape of the endpoint."""
        report = Report(Load(**{"waiting": 0.0, "kv_usage": 0.0, **load}), running)
        if cache_tokens is not None:
            report = report._replace(block_size=TOKENS, blocks=cache_tokens // TOKENS)
        inflight = self.ledger.loads.get(endpoint.address, 0)
        self.signals.record_scrape(endpoint.address, report, inflight)

    def ring_from(self, key: int) -> list[Endpoint]:
        return list(self.snapshot.walk(key, ""))

    def others(self, than: Endpoint) -> Iterator[Endpoint]:
        return (endpoint for endpoint in self.snapshot.endpoints if endpoint != than)


def learn_speed(replicas: Replicas, endpoint: Endpoint, seconds: float = 1) -> None:
    """Let an endpoint compute prompts of 5,000 tokens in so many seconds each."""
    speeds = replicas.signals.speeds
    speeds.began(endpoint.address)
    for _ in range(50):
        replicas.clock.now += seconds
        speeds.computed(endpoint.address, 5_000)
        speeds.observed(endpoint.address, is_busy=True)


def costs(replicas: Replicas, tied: TiedRequests | None = None) -> PrefixCosts:
    """Return new costs of all endpoints."""
    tied = tied or TiedRequests(replicas.clock.now)
    found = PrefixCosts(replicas.signals, WEIGHTS, tied, replicas.addresses)
    found.refresh(replicas.clock.now)
    return found


not_compiled = pytest.mark.skipif(COMPILED, reason="compiled methods cannot be replaced")


def set_slowness(monkeypatch: pytest.MonkeyPatch, replicas: Replicas, known: Slowness) -> None:
    """Let the times of the engines differ in this way. Skip the test if this is impossible."""
    if COMPILED:
        pytest.skip("compiled methods cannot be replaced")
    monkeypatch.setattr(replicas.signals, "slowness", lambda addresses: known)
