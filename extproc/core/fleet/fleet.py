"""The state of the fleet: everything that the sidecar knows of endpoints, except their addresses.

The catalog says which endpoints exist and is replaced as a whole. The state here outlives each
catalog and changes with every request, scrape and response.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from secrets import token_bytes

from extproc.core.fleet.context_lengths import ContextLengths
from extproc.core.fleet.ejection import Ejection
from extproc.core.fleet.endpoint import Endpoint, Snapshot
from extproc.core.fleet.ledger import Ledger
from extproc.core.fleet.response_ids import ResponseIds
from extproc.core.fleet.signals import Signals
from extproc.core.fleet.token_sizes import TokenSizes


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
        self.token_sizes = TokenSizes()
        """Bytes per token of each model."""
        self.context_lengths = ContextLengths()
        """The longest context of each endpoint."""
        self.response_ids = ResponseIds(token_bytes)
        """The endpoints of stored responses."""
        self._snapshots: Mapping[str, Snapshot] = {}

    def set_models(self, snapshots: Mapping[str, Snapshot]) -> None:
        """Take the ready endpoints of each model."""
        self._snapshots = snapshots
        self.ejection.set_models(snapshots)

    def endpoint(self, model: str, address: str) -> Endpoint:
        """Return the model's endpoint at an address, also if the model does not list it."""
        snapshot = self._snapshots.get(model)
        known = snapshot.endpoints if snapshot else ()
        return next((e for e in known if e.address == address), Endpoint(address, address))
