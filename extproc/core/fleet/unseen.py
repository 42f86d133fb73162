"""The requests of other sidecars that a decision does not know yet.

Sidecars that share their state know of each other's requests some milliseconds later. Requests that
arrive at one moment are decided without each other. With the same information they all find the
same endpoint the least busy, and flood it. So each decision assumes as many requests on its
endpoint as the decisions before it missed on theirs.
"""

from __future__ import annotations

from collections import deque

_SETTLED_SECONDS = 0.3
"""Seconds after which the requests that a decision did not know have arrived."""

_MOST_DECISIONS = 64
"""Decisions whose requests are awaited. At a thousand a second, they last 64 ms."""

_RECENT = 0.02
"""Weight of one decision in the mean: about fifty count."""


class _Decision:
    """A decision for an endpoint, and the requests there that it did not know."""

    __slots__ = ("address", "at", "missed")

    def __init__(self, address: str, at: float) -> None:
        self.address = address
        self.at = at
        self.missed = 0


class Unseen:
    """Learns how many requests on the chosen endpoint a decision does not know."""

    def __init__(self) -> None:
        self._recent: deque[_Decision] = deque()
        self.mean = 0.0
        """Mean requests on the chosen endpoint that were sent before the decision but not known."""

    def decided(self, address: str, now: float) -> None:
        """Record a decision of this sidecar."""
        recent = self._recent
        settled = now - _SETTLED_SECONDS
        while recent and (recent[0].at < settled or len(recent) >= _MOST_DECISIONS):
            self.mean += _RECENT * (recent.popleft().missed - self.mean)
        recent.append(_Decision(address, now))

    def arrived(self, address: str, sent_at: float) -> None:
        """Record a request of another sidecar, which is known from now on."""
        for decision in reversed(self._recent):
            if decision.at < sent_at:
                break
            if decision.address == address:
                decision.missed += 1
