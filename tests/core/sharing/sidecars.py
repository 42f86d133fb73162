"""Sidecars that share their requests, without a server in between."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import xxhash

from extproc.core.fleet.endpoint import Endpoint, Snapshot
from extproc.core.fleet.fleet import Fleet
from extproc.core.fleet.ledger import Lease
from extproc.core.fleet.sent_request import SentRequest
from extproc.core.sharing.batch import Batch
from extproc.core.sharing.journal import Journal
from extproc.core.sharing.peers import Peers
from tests.core.clock import Clock

MODEL = "llama"
A, B, C, D = (f"10.0.0.{number}:8000" for number in range(1, 5))
ADDRESSES = (A, B, C, D)
UNKNOWN = "192.0.2.1:80"


def prompt(*words: str) -> list[int]:
    """Return a block for each word; like a real block, it depends on all words before it."""
    texts = (" ".join(words[: end + 1]) for end in range(len(words)))
    return [xxhash.xxh64_intdigest(text.encode()) for text in texts]


def request(
    *words: str, tokens: float = 100.0, to_compute: float = 60.0, adapter: str = ""
) -> SentRequest:
    """Return a request with one prompt. Its first block counts as known before."""
    blocks = prompt(*words)
    return SentRequest(adapter, (blocks,), blocks[0] if blocks else None, tokens, to_compute)


class Sidecar:
    """One sidecar with its own view of the fleet."""

    def __init__(self, id_: str, clock: Clock, addresses: Sequence[str] = ADDRESSES) -> None:
        self.id = id_
        self.clock = clock
        self.fleet = Fleet(clock)
        self.discovers(addresses)
        self.wakes = 0
        self.journal = Journal(id_, self.fleet, clock, self._wake)
        self.peers = Peers(id_, self.fleet, clock)

    def _wake(self) -> None:
        self.wakes += 1

    def discovers(self, addresses: Sequence[str]) -> None:
        """Let the model have these endpoints."""
        listed = [Endpoint(address, address) for address in addresses]
        self.fleet.set_models({MODEL: Snapshot.of(listed)})
        self.fleet.signals.set_endpoints(addresses)

    def sends(self, address: str = A, sent: SentRequest | None = None) -> Lease:
        """Send a request, which is in flight until its lease is released."""
        return self.fleet.send(MODEL, Endpoint(address, address), sent or request("hello"))

    def reports(
        self, *others: Sidecar, held: bool = False, is_last: bool = False, age: float = 0.0
    ) -> Batch:
        """Report to other sidecars, and return the batch."""
        batch = self.journal.take(held=held, is_last=is_last)
        for other in others:
            other.peers.receive(batch, age)
        return batch

    def loads(self) -> dict[str, int]:
        """Return the requests in flight of all known sidecars, by address."""
        return dict(self.fleet.ledger.loads)

    def backlog(self) -> dict[str, float]:
        """Return the prompt tokens to compute, by address."""
        return dict(self.fleet.signals.backlog.tokens)

    def contexts(self) -> dict[str, float]:
        """Return the prompt tokens in flight, by address."""
        totals = self.fleet.signals.totals
        tokens = {address: totals.of(address).context for address in (*ADDRESSES, UNKNOWN)}
        return {address: number for address, number in tokens.items() if number}

    def requests(self, address: str) -> float:
        """Return the requests on an endpoint."""
        return self.fleet.signals.totals.of(address).requests

    def paused(self, address: str) -> float:
        """Return the paused sessions of an endpoint."""
        return self.fleet.signals.totals.of(address).paused

    def matches(self, *words: str) -> dict[str, int]:
        """Return the cached leading blocks of a prompt, by address."""
        return dict(self.fleet.signals.prefixes.matches(prompt(*words)))

    def adapters(self, address: str) -> list[str]:
        """Return the adapters that an endpoint probably has in memory."""
        return list(self.fleet.signals.residency.loaded(address))


def group(number: int = 2, addresses: Sequence[str] = ADDRESSES) -> list[Sidecar]:
    """Return sidecars with one clock, named a, b and so on."""
    clock = Clock()
    return [Sidecar(chr(ord("a") + place), clock, addresses) for place in range(number)]


def all_report(sidecars: Iterable[Sidecar], *, held: bool = False) -> None:
    """Let each sidecar report to the others."""
    known = list(sidecars)
    for one in known:
        one.reports(*(other for other in known if other is not one), held=held)
