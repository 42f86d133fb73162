"""The decision: which endpoint serves a request, and why."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from extproc.core.body import Document
from extproc.core.catalog import Catalog, Model
from extproc.core.endpoint import Endpoint
from extproc.core.errors import NoEndpoints
from extproc.core.ledger import Lease, Ledger
from extproc.core.prefix import key_of, prefix_of
from extproc.core.strategies import Candidate, Query, Reason


class Placement(NamedTuple):
    """A request as a strategy sees it: its model, adapter, prefix and place on the ring."""

    model: Model
    adapter: str
    prefix: str
    key: int | None


class Decision(NamedTuple):
    """Where a request goes; the lease on the endpoint is already taken."""

    model: str
    adapter: str
    strategy: str
    key: int | None
    reason: Reason
    hops: int
    inflight: int
    """Requests on the endpoint before this one."""
    candidates: int
    """Endpoints that could have served the request."""
    fallback: str | None
    """The address to try when the endpoint refuses."""
    lease: Lease

    @property
    def address(self) -> str:
        """IP:PORT of the chosen endpoint."""
        return self.lease.endpoint.address


class Router:
    """Answers from one catalog and one ledger.

    Synchronous on purpose: between looking at the loads and taking the lease no
    other decision can come, so concurrent requests never share one free place.
    """

    def __init__(self, ledger: Ledger, catalog: Catalog | None = None) -> None:
        self.ledger = ledger
        self.catalog = catalog or Catalog()
        """The catalog in force; assign to publish another."""

    def place(self, name: str, document: Document | None, headers: Mapping[str, str]) -> Placement:
        """What the request means here. Raises ModelNotFound."""
        model, adapter = self.catalog.resolve(name)
        prefix = prefix_of(document, headers, model.spec.load_balancing.prefix_hash)
        return Placement(model, adapter, prefix, key_of(adapter, prefix))

    def endpoint(self, model: str, address: str) -> Endpoint:
        """The endpoint of a model at an address, be it known or not."""
        found = self.catalog.models.get(model)
        known = found.snapshot.endpoints if found else ()
        return next((e for e in known if e.address == address), Endpoint(address, address))

    def order(self, placement: Placement) -> Iterator[Candidate]:
        """The model's eligible endpoints, the best first, at this moment's loads."""
        query = Query(placement.adapter, placement.key)
        return placement.model.strategy.rank(query, placement.model.snapshot, self.ledger.loads)

    def decide(self, placement: Placement) -> Decision:
        """Picks an endpoint and takes a lease on it. Raises NoEndpoints."""
        spec = placement.model.spec
        order = self.order(placement)
        best = next(order, None)
        if best is None:
            raise NoEndpoints(spec.name, placement.adapter)
        second = next(order, None)
        return Decision(
            model=spec.name,
            adapter=placement.adapter,
            strategy=spec.load_balancing.strategy,
            key=placement.key,
            reason=best.reason,
            hops=best.hops,
            inflight=self.ledger.loads.get(best.endpoint.address, 0),
            candidates=len(placement.model.snapshot.eligible(placement.adapter)),
            fallback=second.endpoint.address if second else None,
            lease=self.ledger.acquire(spec.name, best.endpoint),
        )
