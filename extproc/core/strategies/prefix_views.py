"""Groups of endpoints, with what PrefixCache keeps of each."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from extproc.core.fleet.endpoint import Endpoint
from extproc.core.fleet.signals import Signals
from extproc.core.fleet.weights import Weights
from extproc.core.strategies.prefix_costs import PrefixCosts
from extproc.core.strategies.tied_requests import TiedRequests

_MOST_VIEWS = 16
"""Groups that are kept: requests for different adapters, or behind gateways that allow a subset,
have different ones in turn."""


class View:
    """Endpoints that are eligible together. Their positions stand for them."""

    __slots__ = ("_stale", "addresses", "costs", "eligible", "positions", "trusted")

    def __init__(
        self,
        eligible: Sequence[Endpoint],
        signals: Signals,
        weights: Weights,
        tied: TiedRequests,
    ) -> None:
        self.eligible = eligible
        self.addresses = [endpoint.address for endpoint in eligible]
        self.positions = {address: position for position, address in enumerate(self.addresses)}
        self.costs = PrefixCosts(signals, weights, tied, self.addresses)
        self.trusted: dict[str, int] = {}
        """The positions of the endpoints whose caches count."""
        self._stale: Collection[str] | None = None

    def trust(self, stale: Collection[str]) -> None:
        """Let only the caches of endpoints count that are not stale."""
        if stale is not self._stale:
            self._stale = stale
            self.trusted = {a: p for a, p in self.positions.items() if a not in stale}


class Views:
    """The views that were used last."""

    def __init__(self, signals: Signals, weights: Weights, tied: TiedRequests) -> None:
        self._signals = signals
        self._weights = weights
        self._tied = tied
        self._views: list[View] = []  # the latest one first

    def of(self, eligible: Sequence[Endpoint]) -> View:
        """Return the view of these endpoints. A snapshot has the same object for equal groups."""
        views = self._views
        for place, view in enumerate(views):
            if view.eligible is eligible:
                del views[place]
                break
        else:
            view = View(eligible, self._signals, self._weights, self._tied)
            del views[_MOST_VIEWS - 1 :]
        views.insert(0, view)
        return view
