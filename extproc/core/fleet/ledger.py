"""The ledger of in-flight requests: a lease for each request, from the decision to its end.

Every load-aware strategy reads the counts. A lease that is never released would make an endpoint
look busy permanently, and one released twice would make it look idle. So a lease can be released
any number of times, and counts once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Protocol

from extproc.core.fleet.backlog import Prefill
from extproc.core.fleet.contexts import Context
from extproc.core.fleet.endpoint import Endpoint
from extproc.core.fleet.sent_request import SentRequest
from extproc.core.fleet.totals import Totals


class Journal(Protocol):
    """Records the course of this sidecar's requests, which have numbers."""

    def sent(self, model: str, address: str, request: SentRequest) -> int:
        """Record a request that goes to an endpoint, and return its number, 1 or more."""

    def began(self, number: int) -> None:
        """Record the first token of the response."""

    def moved(self, number: int, address: str) -> None:
        """Record that another endpoint serves the request after a retry."""

    def ended(self, number: int) -> None:
        """Record that the request has ended."""


class LeaseListener(Protocol):
    """Receives the course of one request."""

    def began(self, lease: Lease) -> None:
        """Record that the response's headers have arrived."""

    def ended(self, lease: Lease) -> None:
        """Record that the request has ended."""


class Lease:
    """One request's claim on an endpoint."""

    __slots__ = (
        "_ledger",
        "context",
        "endpoint",
        "listener",
        "model",
        "number",
        "prefill",
        "request",
    )

    def __init__(self, ledger: Ledger, model: str, endpoint: Endpoint) -> None:
        self._ledger: Ledger | None = ledger
        self.model = model
        self.endpoint = endpoint
        self.number = 0
        """The number of the request in the journal; 0 if it is not recorded there."""
        self.prefill: Prefill | None = None
        """The prompt in the endpoint's backlog; None without a prediction."""
        self.context: Context | None = None
        """The prompt that the endpoint holds; None without a prediction."""
        self.request: SentRequest | None = None
        """The prompts and the adapter, until the response's headers; None if they will not be seen.
        Long prompts take memory."""
        self.listener: LeaseListener | None = None
        """Receives the course of the request; None without flow control."""

    def begin(self) -> None:
        """Report to the listener that the response's headers have arrived."""
        if self.listener is not None:
            self.listener.began(self)

    def finish_prefill(self) -> None:
        """Remove the prompt from the backlog, because it has its first token.

        A second call does nothing.
        """
        prefill, self.prefill = self.prefill, None
        if prefill is not None:
            prefill.finish()
            if self.number and self._ledger is not None and self._ledger.journal is not None:
                self._ledger.journal.began(self.number)

    def move(self, endpoint: Endpoint) -> None:
        """Move the lease to another endpoint, which serves the request after a retry.

        A second call with the same endpoint does nothing.
        """
        ledger = self._ledger
        if ledger is not None and endpoint.address != self.endpoint.address:
            ledger._count(self.endpoint.address, -1)
            ledger._count(endpoint.address, +1)
            self.endpoint = endpoint
            if self.number and ledger.journal is not None:
                ledger.journal.moved(self.number, endpoint.address)
            if self.prefill is not None:
                self.prefill.move(endpoint.address)
            if self.context is not None:
                self.context.move(endpoint.address)

    def release(self) -> None:
        """End the claim. A second call does nothing."""
        ledger, self._ledger, self.request = self._ledger, None, None
        if ledger is not None:
            ledger._end(self)
            if self.number and ledger.journal is not None:
                ledger.journal.ended(self.number)
        prefill, self.prefill = self.prefill, None
        if prefill is not None:
            prefill.cancel()
        context, self.context = self.context, None
        if context is not None:
            context.end()
        listener, self.listener = self.listener, None
        if listener is not None:
            listener.ended(self)


class Ledger:
    """In-flight requests by endpoint address.

    An address has one load, even if two models list it. The load stays when the configuration or
    the set of endpoints changes. It includes the requests of other sidecars that share their state.
    """

    def __init__(self) -> None:
        self._loads: dict[str, int] = {}
        self._ours: dict[Lease, None] = {}  # a dict keeps their order
        self.loads: Mapping[str, int] = self._loads
        """In-flight requests by address; a missing address has none.

        A read-only proxy would cost microseconds per decision.
        """
        self.totals = Totals()
        """The load of each endpoint, of which the ledger writes the requests by these leases."""
        self.journal: Journal | None = None
        """Records this sidecar's leases, if sidecars share their state."""

    def acquire(self, model: str, endpoint: Endpoint, *, ours: bool = True) -> Lease:
        """Count one more request on an endpoint. Other sidecars' requests are not `ours`."""
        self._count(endpoint.address, +1)
        lease = Lease(self, model, endpoint)
        if ours:
            self._ours[lease] = None
        return lease

    def ours(self) -> Counter[str]:
        """Return this sidecar's requests in flight by address.

        It reads every lease, so it is for occasional use.
        """
        return Counter(lease.endpoint.address for lease in self._ours)

    def leases(self) -> Iterator[Lease]:
        """Yield this sidecar's leases, the oldest first."""
        return iter(self._ours)

    def held(self) -> Iterator[tuple[str, Endpoint, int]]:
        """Yield model, endpoint and number of this sidecar's leases on it.

        This includes endpoints that left but still finish requests. It reads every lease, so it is
        for occasional use.
        """
        endpoints = {(each.model, each.endpoint.address): each.endpoint for each in self._ours}
        counts = Counter((each.model, each.endpoint.address) for each in self._ours)
        for (model, address), count in counts.items():
            yield model, endpoints[model, address], count

    def _end(self, lease: Lease) -> None:
        self._ours.pop(lease, None)
        self._count(lease.endpoint.address, -1)

    def _count(self, address: str, step: int) -> None:
        load = self._loads.get(address, 0) + step
        if load:
            self._loads[address] = load
        else:
            del self._loads[address]
        total = self.totals.of(address)
        total.known_requests = float(load)
        total.sent += max(0, step)
        total.add_up()
