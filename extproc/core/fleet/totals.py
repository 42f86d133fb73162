"""The load of each endpoint, kept up to date for decisions.

A decision reads the loads of all endpoints, often hundreds, and only a few change between two
decisions. So each endpoint has one object, to which each source writes its part of the load, and
strategies keep the objects of their endpoints.
"""

from __future__ import annotations

from collections.abc import Container
from math import inf

_BUSY = 0.5
"""Mean number of others' requests from which an endpoint counts as busy. The mean of one request
falls to this 7 s after its end."""


class Total:
    """The load of one endpoint: of the known requests, and of others according to its metrics.

    Call `add_up` after a change of an attribute that begins with `known` or `other`.
    """

    __slots__ = (
        *("backlog", "context", "known_backlog", "known_requests", "kv_usage"),
        *("other_backlog", "other_requests", "paused", "requests", "room", "sent"),
    )

    def __init__(self) -> None:
        self.known_requests = 0.0
        self.other_requests = 0.0
        self.requests = 0.0
        """Sum of the requests of this sidecar and of others."""
        self.known_backlog = 0.0
        self.other_backlog = 0.0
        self.backlog = 0.0
        """Sum of the prompt tokens to compute for them."""
        self.context = 0.0
        """Tokens of the known prompts in flight, cached or not."""
        self.paused = 0.0
        """Sessions that count as paused."""
        self.room = inf
        """Tokens that fit into the KV cache; infinite if unknown, negative if it is full."""
        self.kv_usage = 0.0
        """Mean share of the KV cache that running requests have filled recently; 0 if unknown."""
        self.sent = 0
        """Known requests so far, also those that have ended."""

    def add_up(self) -> None:
        """Update the sums."""
        # From their parts each time, so that no rounding error remains.
        self.requests = self.known_requests + self.other_requests
        self.backlog = self.known_backlog + self.other_backlog

    @property
    def has_requests(self) -> bool:
        """True if there is a known request, or if the mean of others' is at least one half."""
        return self.requests >= _BUSY

    @property
    def is_idle(self) -> bool:
        """True if there is no load."""
        return not (self.requests or self.backlog or self.context or self.paused)


class Totals:
    """Totals by endpoint address."""

    def __init__(self) -> None:
        self._totals: dict[str, Total] = {}
        self.version = 0
        """Changes when addresses get new objects, so that readers look theirs up again."""

    def of(self, address: str) -> Total:
        """Return the total of an endpoint."""
        total = self._totals.get(address)
        if total is None:
            total = self._totals[address] = Total()
        return total

    def keep_only(self, addresses: Container[str]) -> None:
        """Drop the totals of all other endpoints that are idle."""
        idle = [a for a, total in self._totals.items() if total.is_idle and a not in addresses]
        for address in idle:
            del self._totals[address]
        self.version += len(idle)
