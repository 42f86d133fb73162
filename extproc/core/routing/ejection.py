"""Passive ejection: endpoints that fail are avoided for a while, and come back slowly.

Nothing is sent to find out. What answers say of the endpoints that were asked (where Envoy
shows their headers) is counted by address:

    in service -> ejected      so many failures in a row, without one success
    ejected    -> on trial     its time is over: one request may go there
    on trial   -> in service   that request, or a retry of another, was answered
    on trial   -> ejected      it failed: for twice as long

As in Envoy's outlier detection, but for few and expensive endpoints. Envoy ejects for 30 s, longer
each time, up to 300 s. A replica that is out for minutes after it has recovered is a GPU that
idles, and a trial costs one request, mostly a retry: so 5 s first, and 60 s at the most. Envoy
ejects a tenth, here it may be half of a model's endpoints: of two it is one. Never more, as what
fails everywhere is no fault of the endpoints, and the rest could not bear it. And where all that
could serve a request are ejected it goes to one of them all the same.

Only the answer to a request that was sent there since ends an ejection, or makes it longer: what
was under way when an endpoint died would otherwise count as many trials as it was requests. And
only a trial makes it longer, not what goes there for want of others: else a network that is away
for a moment would leave ejections of a minute behind.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from math import inf
from typing import Protocol

from extproc.core.fleet.endpoint import Endpoint, Snapshot
from extproc.core.fleet.outcome import Outcome
from extproc.core.fleet.subset import Subset
from extproc.core.routing.catalog import Model

FIRST_SECONDS = 5.0
"""How long an endpoint is out at first; each trial that fails doubles it."""

MOST_SECONDS = 60.0
"""How long it is out at the most: an engine takes minutes to load, and is to wait for no more."""

FAILURES: Mapping[Outcome, int] = {
    Outcome.RESET: 3,
    Outcome.REPLACED: 3,
    Outcome.ERROR: 5,
    Outcome.TIMEOUT: 5,
}
"""So many in a row eject, by what the last one was. An engine that answers with errors may do so
for what it was asked, and one that is slow may be only busy, so those get Envoy's five. A
connection that is refused says more. It is not one or two of them because servers close idle
connections (vLLM's after 5 s), and a request may meet that."""


@dataclass(eq=False, slots=True)
class Ejected:
    """An endpoint's ejection; another follows if the trial fails."""

    seconds: float
    until: float
    """When the next request may go there, by the clock of `Ejection`."""
    on_trial: bool = False
    """Whether one has gone there when it was time."""


class EjectionListener(Protocol):
    """Who wants to know of ejections; `models` are those that list the endpoint."""

    def ejected(self, models: Collection[str], address: str, why: Outcome, seconds: float) -> None:
        """An endpoint is avoided from now on, or for longer."""

    def returned(self, models: Collection[str], address: str) -> None:
        """It is in service again."""


class Ejection:
    """Who fails, who is avoided; `clock` gives seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._models: Mapping[str, Model] = {}
        self._failures: dict[str, int] = {}
        self._ejected: dict[str, Ejected] = {}
        self.ejected: Mapping[str, Ejected] = self._ejected
        """By address, those on trial included: while it is empty, requests need not ask."""
        self._avoided: frozenset[str] = frozenset()
        self._spared: dict[str, tuple[Snapshot, Snapshot]] = {}
        self.listeners: list[EjectionListener] = []

    def set_models(self, models: Mapping[str, Model]) -> None:
        """These are the models now. An endpoint that left is forgotten, and would begin anew."""
        self._models = models
        self._spared.clear()
        if self._failures or self._ejected:
            present = {one.address for m in models.values() for one in m.snapshot.endpoints}
            for gone in (self._failures.keys() | self._ejected.keys()) - present:
                self._failures.pop(gone, None)
                self._ejected.pop(gone, None)
            for model in models.values():
                self._keep_to_half(model)

    def record(self, address: str, outcome: Outcome | None, sent: Ejected | None = None) -> None:
        """How an endpoint did with a request; `sent` is what `choose` said of it."""
        if outcome is Outcome.SERVED:
            if self._failures or self._ejected:
                self._served(address, sent)
        elif outcome is not None:
            self._failed(address, outcome, sent)

    def without_ejected(self, model: str, snapshot: Snapshot, adapter: str) -> Snapshot:
        """The snapshot without those that are avoided now; as it is, where no other can serve."""
        now = self._clock()
        avoided = frozenset(address for address, one in self._ejected.items() if now < one.until)
        if avoided != self._avoided:
            self._avoided = avoided
            self._spared.clear()
        whole, spared = self._spared.get(model, (None, snapshot))
        if whole is not snapshot:
            spared = _without(avoided, snapshot)
            self._spared[model] = snapshot, spared
        return spared if spared.eligible(adapter) else snapshot

    def chosen(self, address: str) -> Ejected | None:
        """A request goes there: its ejection, if it is ejected. After a trial the next waits."""
        one = self._ejected.get(address)
        if one is not None and (now := self._clock()) >= one.until:
            one.on_trial = True
            one.until = now + one.seconds
        return one

    def last_resort(self, endpoints: Iterable[Endpoint], chosen: str) -> str | None:
        """Of these, the address of an ejected one that is not chosen: better than nobody."""
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
        self._ejected[address] = Ejected(seconds, self._clock() + seconds)
        for listener in self.listeners:
            listener.ejected(self._listing(address), address, why, seconds)

    def _return(self, address: str) -> None:
        del self._ejected[address]
        for listener in self.listeners:
            listener.returned(self._listing(address), address)

    def _may_eject(self, address: str) -> bool:
        """Whether each model that lists it would still have half of its endpoints."""
        snapshots = [self._models[name].snapshot for name in self._listing(address)]
        return bool(snapshots) and all(
            2 * (len(self._of(snapshot)) + 1) <= len(snapshot.endpoints) for snapshot in snapshots
        )

    def _keep_to_half(self, model: Model) -> None:
        """Of a model that has become smaller those come back first whose time is over first."""
        of_model = sorted(self._of(model.snapshot), key=lambda one: self._ejected[one].until)
        for address in of_model[: max(0, len(of_model) - len(model.snapshot.endpoints) // 2)]:
            self._return(address)

    def _of(self, snapshot: Snapshot) -> list[str]:
        """The snapshot's ejected endpoints."""
        return [one.address for one in snapshot.endpoints if one.address in self._ejected]

    def _listing(self, address: str) -> list[str]:
        """The models that have an endpoint there."""
        return [
            name
            for name, model in self._models.items()
            if any(one.address == address for one in model.snapshot.endpoints)
        ]


def _without(avoided: frozenset[str], snapshot: Snapshot) -> Snapshot:
    """The snapshot itself where it has none of them, so that what is kept of it stays good."""
    addresses = frozenset(one.address for one in snapshot.endpoints)
    if addresses.isdisjoint(avoided):
        return snapshot
    return snapshot.restricted(Subset(addresses - avoided, frozenset()))
