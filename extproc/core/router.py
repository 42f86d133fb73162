"""The decision: which endpoint serves a request, and why."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from extproc.core.body import Document
from extproc.core.catalog import Catalog, Model
from extproc.core.endpoint import Endpoint, Snapshot
from extproc.core.errors import NoEndpoints
from extproc.core.ledger import Lease, Ledger
from extproc.core.prefix import key_of, prefix_of
from extproc.core.strategies import Candidate, Query, Reason
from extproc.core.subset import Subset


class Placement(NamedTuple):
    """A request as a strategy sees it: its model, adapter, prefix and place on the ring."""

    model: Model
    adapter: str
    prefix: str
    key: int | None
    snapshot: Snapshot
    """The model's endpoints that the request may go to."""


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

    @property
    def destination(self) -> str:
        """The chosen address and the fallback's in the form of the endpoint picker protocol."""
        return self.address if self.fallback is None else f"{self.address},{self.fallback}"


class Router:
    """Answers from one catalog and one ledger.

    Synchronous on purpose: between looking at the loads and taking the lease no
    other decision can come, so concurrent requests never share one free place.
    Without `fallbacks` no decision names a second candidate.
    """

    def __init__(
        self, ledger: Ledger, catalog: Catalog | None = None, *, fallbacks: bool = True
    ) -> None:
        self.ledger = ledger
        self._fallbacks = fallbacks
        self.catalog = catalog or Catalog()
        """The catalog in force; assign to publish another."""

    def place(
        self,
        name: str,
        document: Document | None,
        headers: Mapping[str, str],
        subset: Subset | None = None,
    ) -> Placement:
        """What the request means here. Raises ModelNotFound."""
        model, adapter = self.catalog.resolve(name)
        prefix = prefix_of(document, headers, model.spec.load_balancing.prefix_hash)
        snapshot = model.snapshot if subset is None else model.snapshot.restricted(subset)
        return Placement(model, adapter, prefix, key_of(adapter, prefix), snapshot)

    def endpoint(self, model: str, address: str) -> Endpoint:
        """The endpoint of a model at an address, be it known or not."""
        found = self.catalog.models.get(model)
        known = found.snapshot.endpoints if found else ()
        return next((e for e in known if e.address == address), Endpoint(address, address))

    def order(self, placement: Placement) -> Iterator[Candidate]:
        """The model's eligible endpoints, the best first, at this moment's loads."""
        query = Query(placement.adapter, placement.key)
        return placement.model.strategy.rank(query, placement.snapshot, self.ledger.loads)

    def decide(self, placement: Placement) -> Decision:
        """Picks an endpoint and takes a lease on it. Raises NoEndpoints."""
        spec = placement.model.spec
        order = self.order(placement)
        best = next(order, None)
        if best is None:
            restricted = placement.snapshot is not placement.model.snapshot
            raise NoEndpoints(spec.name, placement.adapter, restricted=restricted)
        second = next(order, None) if self._fallbacks else None
        return Decision(
            model=spec.name,
            adapter=placement.adapter,
            strategy=spec.load_balancing.strategy,
            key=placement.key,
            reason=best.reason,
            hops=best.hops,
            inflight=self.ledger.loads.get(best.endpoint.address, 0),
            candidates=len(placement.snapshot.eligible(placement.adapter)),
            fallback=second.endpoint.address if second else None,
            lease=self.ledger.acquire(spec.name, best.endpoint),
        )
