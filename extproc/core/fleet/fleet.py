"""The state of the fleet: everything that the sidecar knows of endpoints.

The catalog says which endpoints exist and is replaced as a whole. The state here outlives each
catalog and changes with every request, scrape and response. A request that another sidecar sent
changes it as if this one had sent it, so strategies need not know who sends.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from secrets import token_bytes

from extproc.core.fleet.context_lengths import ContextLengths
from extproc.core.fleet.contexts import Stored
from extproc.core.fleet.ejection import Ejection
from extproc.core.fleet.endpoint import Endpoint, Snapshot
from extproc.core.fleet.ledger import Lease, Ledger
from extproc.core.fleet.response_ids import ResponseIds
from extproc.core.fleet.sent_request import NOTHING_SENT, SentRequest
from extproc.core.fleet.signals import Signals


def _stopped() -> float:
    """Return the time of a clock that stands still."""
    return 0.0


class Fleet:
    """The load, the metrics, the ejections and the learned sizes of all endpoints."""

    def __init__(
        self,
        clock: Callable[[], float] = _stopped,
        *,
        ledger: Ledger | None = None,
        signals: Signals | None = None,
    ) -> None:
        """Start without requests and readings. `clock` returns seconds; `signals` bring their own
        clock.
        """
        self.ledger = ledger or Ledger()
        """Requests in flight."""
        self.signals = signals or Signals(clock, self.ledger)
        """Metrics and load reports of the endpoints."""
        self.ejection = Ejection(self.signals.clock)
        """Endpoints that are avoided because they failed."""
        self.context_lengths = ContextLengths()
        """The longest context of each endpoint."""
        self.response_ids = ResponseIds(token_bytes)
        """The endpoints of stored responses."""
        self.models: Mapping[str, Snapshot] = {}
        """The ready endpoints of each model."""
        self.endpoints: Mapping[str, Endpoint] = {}
        """The ready endpoints of all models, by address."""

    def set_models(self, snapshots: Mapping[str, Snapshot]) -> None:
        """Take the ready endpoints of each model."""
        self.models = snapshots
        self.endpoints = {one.address: one for s in snapshots.values() for one in s.endpoints}
        self.ejection.set_models(snapshots)
        self.ledger.totals.keep_only(self.endpoints)

    def send(self, model: str, endpoint: Endpoint, request: SentRequest) -> Lease:
        """Record a request that this sidecar sends to an endpoint, and return its lease."""
        now = self.signals.clock()
        lease = self._lease(model, endpoint, request, now, ours=True)
        lease.request = request
        journal = self.ledger.journal
        if journal is not None:
            self.signals.unseen.decided(endpoint.address, now)
            lease.number = journal.sent(model, endpoint.address, request)
        return lease

    def served(self, lease: Lease, address: str) -> None:
        """Record that the endpoint at this address serves a request, perhaps after a retry.

        Then that endpoint has the prompts and the adapter.
        """
        request, lease.request = lease.request, None
        if address != lease.endpoint.address:
            if request is not None:
                if request.turn is not None:
                    self.signals.turns.failed(lease.endpoint.address, request.turn)
                self.store(address, request)
            lease.move(self.endpoint(lease.model, address))

    def receive(self, model: str, endpoint: Endpoint, request: SentRequest, began: float) -> Lease:
        """Record a request that another sidecar sent at the time `began`, and return its lease."""
        self.signals.recognize(endpoint.address, began)
        self.signals.unseen.arrived(endpoint.address, began)
        return self._lease(model, endpoint, request, began, ours=False)

    def store(self, address: str, request: SentRequest) -> int:
        """Record that an endpoint has a request's prompts in its cache and its adapter in memory.

        Return the run of the prefix index in which the first prompt ends.
        """
        if request is NOTHING_SENT:
            return 0
        runs = [self.signals.prefixes.sent(address, chain) for chain in request.chains]
        if request.turn is not None:
            self.signals.turns.sent(address, request.turn, request.to_compute)
        if request.adapter:
            self.signals.residency.used(address, request.adapter)
        return runs[0] if runs else 0

    def _lease(
        self, model: str, endpoint: Endpoint, request: SentRequest, began: float, *, ours: bool
    ) -> Lease:
        address, signals = endpoint.address, self.signals
        run = self.store(address, request)
        lease = self.ledger.acquire(model, endpoint, ours=ours)
        if request.tokens is not None:
            if request.prefix is not None:
                signals.copies.requested(request.prefix)
            stored = Stored(run, request.prefix)
            lease.prefill = signals.backlog.add(address, request.to_compute)
            lease.context = signals.contexts.begin(address, stored, request.tokens, began)
            signals.copies.computed(address, request.to_compute)
        signals.token_sizes.sent(address, model, request, ours=ours)
        return lease

    def endpoint(self, model: str, address: str) -> Endpoint:
        """Return the model's endpoint at an address, also if the model does not list it."""
        snapshot = self.models.get(model)
        known = snapshot.endpoints if snapshot else ()
        return next((e for e in known if e.address == address), Endpoint(address, address))
