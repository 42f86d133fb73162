"""The ledger of requests in flight: a lease for each, from its routing to its end.

The counts steer every load-aware strategy, so a lease that is never released
makes an endpoint look busy for ever, and one released twice makes it look idle.
A lease can be released any number of times and counts once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from extproc.core.backlog import Prefill
from extproc.core.endpoint import Endpoint
from extproc.core.totals import Totals


class Lease:
    """One request's claim on an endpoint."""

    __slots__ = ("_ledger", "endpoint", "model", "prefill")

    def __init__(self, ledger: Ledger, model: str, endpoint: Endpoint) -> None:
        self._ledger: Ledger | None = ledger
        self.model = model
        self.endpoint = endpoint
        self.prefill: Prefill | None = None
        """What the endpoint has to compute before the answer begins, where that is known."""

    def answered(self) -> None:
        """The answer has begun: the prompt is computed. Again, it does nothing."""
        prefill, self.prefill = self.prefill, None
        if prefill is not None:
            prefill.began()

    def move(self, endpoint: Endpoint) -> None:
        """Another endpoint than the chosen one serves the request, after a retry."""
        if self._ledger is not None:
            self._ledger._count(self.model, self.endpoint, -1)
            self._ledger._count(self.model, endpoint, +1)
            self.endpoint = endpoint
            if self.prefill is not None:
                self.prefill.move(endpoint.address)

    def release(self) -> None:
        """Ends the claim; again, it does nothing."""
        ledger, self._ledger = self._ledger, None
        if ledger is not None:
            ledger._count(self.model, self.endpoint, -1)
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
        self._held: dict[tuple[str, str], tuple[Endpoint, int]] = {}
        self.loads: Mapping[str, int] = self._loads
        """In-flight requests by address; an address that is not there has none.

        A proxy that could not be written to would cost microseconds with each decision.
        """
        self.totals = Totals(self._loads)
        """With the requests that others have there, as far as somebody tells."""

    def acquire(self, model: str, endpoint: Endpoint) -> Lease:
        """Counts one request more on an endpoint."""
        self._count(model, endpoint, +1)
        return Lease(self, model, endpoint)

    def held(self) -> Iterator[tuple[str, Endpoint, int]]:
        """Model, endpoint and number of its leases, wherever there are any.

        The way to know endpoints that have left but still finish requests.
        """
        for (model, _), (endpoint, count) in self._held.items():
            yield model, endpoint, count

    def _count(self, model: str, endpoint: Endpoint, step: int) -> None:
        address = endpoint.address
        load = self._loads.get(address, 0) + step
        if load:
            self._loads[address] = load
        else:
            del self._loads[address]
        self.totals.changed(address)
        key = (model, address)
        _, count = self._held.get(key, (endpoint, 0))
        if count + step:
            self._held[key] = (endpoint, count + step)
        else:
            del self._held[key]
