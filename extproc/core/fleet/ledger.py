"""The ledger of requests in flight: a lease for each, from its routing to its end.

The counts steer every load-aware strategy, so a lease that is never released
makes an endpoint look busy for ever, and one released twice makes it look idle.
A lease can be released any number of times and counts once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from extproc.core.fleet.backlog import Prefill
from extproc.core.fleet.endpoint import Endpoint
from extproc.core.fleet.totals import Totals


class Lease:
    """One request's claim on an endpoint."""

    __slots__ = ("_ledger", "endpoint", "model", "prefill")

    def __init__(self, ledger: Ledger, model: str, endpoint: Endpoint) -> None:
        self._ledger: Ledger | None = ledger
        self.model = model
        self.endpoint = endpoint
        self.prefill: Prefill | None = None
        """What the endpoint has to compute before the answer begins, where that is known."""

    def finish_prefill(self) -> None:
        """The answer has begun: the prompt is computed. Again, it does nothing."""
        prefill, self.prefill = self.prefill, None
        if prefill is not None:
            prefill.began()

    def move(self, endpoint: Endpoint) -> None:
        """Another endpoint than the chosen one serves the request, after a retry."""
        if self._ledger is not None:
            self._ledger._count(self.endpoint.address, -1)
            self._ledger._count(endpoint.address, +1)
            self.endpoint = endpoint
            if self.prefill is not None:
                self.prefill.move(endpoint.address)

    def release(self) -> None:
        """Ends the claim; again, it does nothing."""
        ledger, self._ledger = self._ledger, None
        if ledger is not None:
            ledger._end(self)
        prefill, self.prefill = self.prefill, None
        if prefill is not None:
            prefill.end()


class Ledger:
    """Requests in flight, by endpoint.

    An endpoint is known by its address: its load is one number, even if two
    models of the configuration list it, and stays when the configuration or the
    set of endpoints changes around it.
    """

    def __init__(self) -> None:
        self._loads: dict[str, int] = {}
        self._leases: dict[Lease, None] = {}  # in their order
        self.loads: Mapping[str, int] = self._loads
        """In-flight requests by address; an address that is not there has none.

        A proxy that could not be written to would cost microseconds with each decision.
        """
        self.totals = Totals(self._loads)
        """With the requests that others have there, as far as somebody tells."""

    def acquire(self, model: str, endpoint: Endpoint) -> Lease:
        """Counts one request more on an endpoint."""
        self._count(endpoint.address, +1)
        lease = Lease(self, model, endpoint)
        self._leases[lease] = None
        return lease

    def held(self) -> Iterator[tuple[str, Endpoint, int]]:
        """Model, endpoint and number of its leases, wherever there are any.

        The way to know endpoints that have left but still finish requests. It looks at each
        lease: for those who ask now and then.
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
