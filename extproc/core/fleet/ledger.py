"""The ledger of in-flight requests: a lease for each request, from the decision to its end.

Every load-aware strategy reads the counts. A lease that is never released would make an endpoint
look busy permanently, and one released twice would make it look idle. So a lease can be released
any number of times, and counts once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from extproc.core.fleet.backlog import Prefill
from extproc.core.fleet.contexts import Context
from extproc.core.fleet.endpoint import Endpoint
from extproc.core.fleet.totals import Totals


class Lease:
    """One request's claim on an endpoint."""

    __slots__ = ("_ledger", "context", "endpoint", "model", "prefill")

    def __init__(self, ledger: Ledger, model: str, endpoint: Endpoint) -> None:
        self._ledger: Ledger | None = ledger
        self.model = model
        self.endpoint = endpoint
        self.prefill: Prefill | None = None
        """The prompt in the endpoint's backlog; None without a prediction."""
        self.context: Context | None = None
        """The prompt that the endpoint holds; None without a prediction."""

    def finish_prefill(self) -> None:
        """Remove the prompt from the backlog, because the response has begun.

        A second call does nothing.
        """
        prefill, self.prefill = self.prefill, None
        if prefill is not None:
            prefill.finish()

    def move(self, endpoint: Endpoint) -> None:
        """Move the lease to another endpoint, which serves the request after a retry."""
        if self._ledger is not None:
            self._ledger._count(self.endpoint.address, -1)
            self._ledger._count(endpoint.address, +1)
            self.endpoint = endpoint
            if self.prefill is not None:
                self.prefill.move(endpoint.address)
            if self.context is not None:
                self.context.move(endpoint.address)

    def release(self) -> None:
        """End the claim. A second call does nothing."""
        ledger, self._ledger = self._ledger, None
        if ledger is not None:
            ledger._end(self)
        prefill, self.prefill = self.prefill, None
        if prefill is not None:
            prefill.cancel()
        context, self.context = self.context, None
        if context is not None:
            context.end()


class Ledger:
    """In-flight requests by endpoint address.

    An address has one load, even if two models list it. The load stays when the configuration or
    the set of endpoints changes.
    """

    def __init__(self) -> None:
        self._loads: dict[str, int] = {}
        self._leases: dict[Lease, None] = {}  # a dict keeps their order
        self.loads: Mapping[str, int] = self._loads
        """In-flight requests by address; a missing address has none.

        A read-only proxy would cost microseconds per decision.
        """
        self.totals = Totals(self._loads)
        """Requests of this sidecar and, if known, of others."""

    def acquire(self, model: str, endpoint: Endpoint) -> Lease:
        """Count one more request on an endpoint."""
        self._count(endpoint.address, +1)
        lease = Lease(self, model, endpoint)
        self._leases[lease] = None
        return lease

    def held(self) -> Iterator[tuple[str, Endpoint, int]]:
        """Yield model, endpoint and number of leases, for each endpoint that has leases.

        This includes endpoints that left but still finish requests. It reads every lease, so it is
        for occasional use.
        """
        endpoints = {(each.model, each.endpoint.address): each.endpoint for each in self._leases}
        counts = Counter((each.model, each.endpoint.address) for each in self._leases)
        for (model, address), count in counts.items():
            yield model, endpoints[model, address], count

    def _end(self, lease: Lease) -> None:
        del self._leases[lease]
        self._count(lease.endpoint.address, -1)

    def _count(self, address: str, step: int) -> None:
        load = self._loads.get(address, 0) + step
        if load:
            self._loads[address] = load
        else:
            del self._loads[address]
        self.totals.changed(address)
