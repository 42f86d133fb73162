"""Passive ejection: endpoints that fail are avoided for a while, and return slowly.

The sidecar sends no probes. It counts, by address, how requests ended at the endpoints that
Envoy asked. Envoy must forward response headers for that.

    in service -> ejected      several failures in a row, without a success in between
    ejected    -> on trial     the ejection time is over: one request may go there
    on trial   -> in service   that request, or a retry of another one, succeeded
    on trial   -> ejected      it failed: the ejection time doubles

This is Envoy's outlier detection with other numbers, because model servers are few and expensive:

- Envoy ejects for 30 s at first and for 300 s at most. Here it is 5 s and 60 s: an endpoint that
  stays out after it has recovered is an idle GPU, and a trial costs one request, mostly a retry.
- Envoy ejects a tenth of the endpoints. Here up to half of a model's endpoints may be out, so one
  of two. A failure of more than half is probably not the endpoints' fault, and the rest could not
  carry the load. If every endpoint that could serve a request is ejected, one of them gets it.

Only a request that was sent after the ejection can end or prolong it. Otherwise each request
that was in flight when an endpoint died would count as a trial. Only a trial prolongs it, and not
a request that went there because there was no other endpoint. Otherwise a short network outage
would leave ejections of a minute behind.

Sidecars that share their state adopt each other's ejections, trials and returns. Each still judges
its own trial, so two trials at the same moment do no harm.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from math import inf
from typing import Protocol

from extproc.core.fleet.endpoint import Endpoint, Snapshot
from extproc.core.fleet.outcome import Outcome
from extproc.core.fleet.subset import Subset

FIRST_SECONDS = 5.0
"""The first ejection time; each failed trial doubles it."""

MOST_SECONDS = 60.0
"""The longest ejection time: an engine takes minutes to load and should not wait longer after."""

FAILURES: Mapping[Outcome, int] = {
    Outcome.RESET: 3,
    Outcome.REPLACED: 3,
    Outcome.ERROR: 5,
    Outcome.TIMEOUT: 5,
}
"""Consecutive failures that eject, by the kind of the last one.

An error may be caused by the request, and a timeout by load, so these need Envoy's five. A refused
connection is stronger evidence. It still takes three, because servers close idle connections
(vLLM after 5 s), and a request may arrive at that moment."""


@dataclass(eq=False, slots=True)
class Ejected:
    """One ejection of an endpoint; a failed trial starts another one."""

    seconds: float
    until: float
    """When the next request may go there, by the clock of `Ejection`."""
    since: float
    """When the ejection began. A return that is older does not end it."""
    on_trial: bool = False
    """True once a request went there after the ejection time."""


class EjectionListener(Protocol):
    """Receives each ejection, trial and return by this sidecar.

    `models` are those that list the endpoint.
    """

    def ejected(self, models: Collection[str], address: str, why: Outcome, seconds: float) -> None:
        """Handle an ejection, or a longer one after a failed trial."""

    def tried(self, models: Collection[str], address: str) -> None:
        """Handle a request on trial."""

    def returned(self, models: Collection[str], address: str) -> None:
        """Handle an endpoint's return to service."""


class Ejection:
    """Failures and ejections by endpoint address; `clock` returns seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._snapshots: Mapping[str, Snapshot] = {}
        self._failures: dict[str, int] = {}
        self._ejected: dict[str, Ejected] = {}
        self.ejected: Mapping[str, Ejected] = self._ejected
        """Ejections by address, also those on trial. While it is empty, decisions skip this."""
        self._avoided: frozenset[str] = frozenset()
        self._remaining: dict[str, tuple[Snapshot, Snapshot]] = {}
        self.listeners: list[EjectionListener] = []

    def set_models(self, snapshots: Mapping[str, Snapshot]) -> None:
        """Take the endpoints of each model, and forget the endpoints that left."""
        self._snapshots = snapshots
        self._remaining.clear()
        if self._failures or self._ejected:
            present = {one.address for s in snapshots.values() for one in s.endpoints}
            for removed in (self._failures.keys() | self._ejected.keys()) - present:
                self._failures.pop(removed, None)
                self._ejected.pop(removed, None)
            for snapshot in snapshots.values():
                self._return_above_half(snapshot)

    def record(self, address: str, outcome: Outcome | None, sent: Ejected | None = None) -> None:
        """Count how a request ended; `sent` is the result of `chosen` for that request."""
        if outcome is Outcome.SERVED:
            if self._failures or self._ejected:
                self._served(address, sent)
        elif outcome is not None:
            self._failed(address, outcome, sent)

    def without_ejected(self, model: str, snapshot: Snapshot, adapter: str) -> Snapshot:
        """Return the snapshot without ejected endpoints, or unchanged if no other one can serve."""
        now = self._clock()
        avoided = frozenset(address for address, one in self._ejected.items() if now < one.until)
        if avoided != self._avoided:
            self._avoided = avoided
            self._remaining.clear()
        whole, remaining = self._remaining.get(model, (None, snapshot))
        if whole is not snapshot:
            remaining = _without(avoided, snapshot)
            self._remaining[model] = snapshot, remaining
        return remaining if remaining.eligible(adapter) else snapshot

    def chosen(self, address: str) -> Ejected | None:
        """Return the ejection of an endpoint that gets a request; None if it is in service.

        After the ejection time this starts a trial, and the next request waits for its result.
        """
        one = self._ejected.get(address)
        if one is not None and (now := self._clock()) >= one.until:
            one.on_trial = True
            one.until = now + one.seconds
            for listener in self.listeners:
                listener.tried(self._models_listing(address), address)
        return one

    def adopt(self, address: str, seconds: float, age: float) -> None:
        """Eject an endpoint that another sidecar avoids.

        That sidecar avoided it for `seconds` more, `age` seconds ago.
        """
        now, seconds = self._clock(), min(seconds, MOST_SECONDS)
        since, until = now - age, now + seconds - age
        seconds = _ejection_time(seconds)
        one = self._ejected.get(address)
        if until <= now:
            return
        if one is not None:  # the same object, which a trial of this sidecar may refer to
            if seconds > one.seconds:  # another trial failed: one at the same time says no more
                one.on_trial = False
            one.seconds, one.until = max(one.seconds, seconds), max(one.until, until)
            one.since = max(one.since, since)
        elif self._may_eject(address):
            self._failures.pop(address, None)
            self._ejected[address] = Ejected(seconds, until, since)

    def adopt_trial(self, address: str) -> None:
        """Wait for the result of another sidecar's trial."""
        one = self._ejected.get(address)
        if one is not None:
            one.until = max(one.until, self._clock() + one.seconds)

    def adopt_return(self, address: str, age: float) -> None:
        """Return an endpoint to service, because another sidecar did so `age` seconds ago."""
        one = self._ejected.get(address)
        if one is None or one.since <= self._clock() - age:
            self._failures.pop(address, None)
            self._ejected.pop(address, None)

    def last_resort(self, endpoints: Iterable[Endpoint], chosen: str) -> str | None:
        """Return the ejected endpoint, other than the chosen one, that may return first."""
        others = (one.address for one in endpoints if one.address != chosen)
        known = ((self._ejected[a].until, a) for a in others if a in self._ejected)
        return min(known, default=(inf, None))[1]

    def _served(self, address: str, sent: Ejected | None) -> None:
        self._failures.pop(address, None)
        if sent is not None and self._ejected.get(address) is sent:
            self._return(address)

    def _failed(self, address: str, outcome: Outcome, sent: Ejected | None) -> None:
        before = self._ejected.get(address)
        if before is not None:
            if before is sent and before.on_trial:
                self._eject(address, outcome, min(2 * before.seconds, MOST_SECONDS))
            return
        count = self._failures[address] = self._failures.get(address, 0) + 1
        if count >= FAILURES[outcome] and self._may_eject(address):
            del self._failures[address]
            self._eject(address, outcome, FIRST_SECONDS)

    def _eject(self, address: str, why: Outcome, seconds: float) -> None:
        now = self._clock()
        self._ejected[address] = Ejected(seconds, now + seconds, now)
        for listener in self.listeners:
            listener.ejected(self._models_listing(address), address, why, seconds)

    def _return(self, address: str) -> None:
        del self._ejected[address]
        for listener in self.listeners:
            listener.returned(self._models_listing(address), address)

    def _may_eject(self, address: str) -> bool:
        """Return True if each model that lists the endpoint would keep half of its endpoints."""
        snapshots = [self._snapshots[name] for name in self._models_listing(address)]
        return bool(snapshots) and all(
            2 * (len(self._ejected_of(snapshot)) + 1) <= len(snapshot.endpoints)
            for snapshot in snapshots
        )

    def _return_above_half(self, snapshot: Snapshot) -> None:
        """Return endpoints until at most half are ejected, those with the least time left first."""
        ejected = sorted(self._ejected_of(snapshot), key=lambda one: self._ejected[one].until)
        for address in ejected[: max(0, len(ejected) - len(snapshot.endpoints) // 2)]:
            self._return(address)

    def _ejected_of(self, snapshot: Snapshot) -> list[str]:
        return [one.address for one in snapshot.endpoints if one.address in self._ejected]

    def _models_listing(self, address: str) -> list[str]:
        return [
            name
            for name, snapshot in self._snapshots.items()
            if any(one.address == address for one in snapshot.endpoints)
        ]


def _ejection_time(remaining: float) -> float:
    """Return the shortest ejection time that is not less than the seconds that remain of it."""
    seconds = FIRST_SECONDS
    while seconds < remaining:
        seconds *= 2
    return min(seconds, MOST_SECONDS)


def _without(avoided: frozenset[str], snapshot: Snapshot) -> Snapshot:
    addresses = frozenset(one.address for one in snapshot.endpoints)
    if addresses.isdisjoint(avoided):
        return snapshot  # the same object, so that what is cached for it stays valid
    return snapshot.restricted(Subset(addresses - avoided, frozenset()))
