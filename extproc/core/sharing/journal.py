"""The journal: the course of this sidecar's requests, until it is reported to the others."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, Literal, NamedTuple

from extproc.core.fleet.fleet import Fleet
from extproc.core.fleet.ledger import Lease
from extproc.core.fleet.outcome import Outcome
from extproc.core.fleet.sent_request import SentRequest
from extproc.core.sharing.batch import Batch, Held, Sent, packed
from extproc.core.sharing.peers import SILENT_SECONDS

MOST_BLOCKS = 500_000
"""Blocks of requests that wait to be reported; 4 MB in a batch. While the shared state is away, the
oldest requests are dropped. The list of requests in flight corrects the counts later."""

MOST_REQUESTS = 50_000
"""Requests, and as many events of requests, that wait to be reported."""


class _Unreported(NamedTuple):
    """A sent request."""

    number: int
    model: str
    address: str
    request: SentRequest
    at: float

    @property
    def blocks(self) -> int:
        return sum(map(len, self.request.chains))


class _EjectionEvent(NamedTuple):
    """An ejection, a trial or a return."""

    kind: Literal["ejected", "tried", "returned"]
    address: str
    at: float
    seconds: float = 0.0
    """The time of an ejection."""


class _Taken(NamedTuple):
    """The records of one batch."""

    sent: list[_Unreported]
    moved: list[tuple[int, str]]
    began: list[int]
    ended: list[int]
    ejections: list[_EjectionEvent]


class Names:
    """The list of names of one batch."""

    def __init__(self) -> None:
        self._positions = {"": 0}

    def position(self, name: str) -> int:
        """Return the position of a name, and add it if necessary."""
        return self._positions.setdefault(name, len(self._positions))

    def all(self) -> list[str]:
        """Return the names in order."""
        return list(self._positions)


class Journal:
    """Records the requests of a fleet; `clock` returns seconds.

    `wake` is called when there is something to report again.
    """

    def __init__(
        self,
        origin: str,
        fleet: Fleet,
        clock: Callable[[], float],
        wake: Callable[[], None] = lambda: None,
    ) -> None:
        self.origin = origin
        self._fleet = fleet
        self._clock = clock
        self._wake = wake
        self._is_awake = False
        self._last = 0
        self._blocks = 0
        self._sent: list[_Unreported] = []
        self._moved: list[tuple[int, str]] = []
        self._began: list[int] = []
        self._ended: list[int] = []
        self._ejections: list[_EjectionEvent] = []
        self._taken: _Taken | None = None
        fleet.ledger.journal = self
        fleet.ejection.listeners.append(self)

    @property
    def is_empty(self) -> bool:
        """True if there is nothing to report."""
        return not self._is_awake

    def sent(self, model: str, address: str, request: SentRequest) -> int:
        """Record a request that goes to an endpoint, and return its number."""
        self._last += 1
        one = _Unreported(self._last, model, address, request, self._clock())
        self._happened()
        self._sent.append(one)
        self._blocks += one.blocks
        if self._blocks > MOST_BLOCKS or len(self._sent) > MOST_REQUESTS:
            self._drop_half()
        return self._last

    def began(self, number: int) -> None:
        """Record the first token of the response."""
        self._happened()
        self._began.append(number)
        _limit(self._began)

    def moved(self, number: int, address: str) -> None:
        """Record that another endpoint serves the request after a retry."""
        self._happened()
        self._moved.append((number, address))
        _limit(self._moved)

    def ended(self, number: int) -> None:
        """Record that the request has ended."""
        self._happened()
        self._ended.append(number)
        _limit(self._ended)

    def ejected(self, models: Collection[str], address: str, why: Outcome, seconds: float) -> None:
        """Record an ejection, or a longer one."""
        self._record(_EjectionEvent("ejected", address, self._clock(), seconds))

    def tried(self, models: Collection[str], address: str) -> None:
        """Record that an ejected endpoint got a request on trial."""
        self._record(_EjectionEvent("tried", address, self._clock()))

    def returned(self, models: Collection[str], address: str) -> None:
        """Record that an endpoint returned to service."""
        self._record(_EjectionEvent("returned", address, self._clock()))

    def take(self, *, held: bool = False, is_last: bool = False) -> Batch:
        """Return what was recorded since the last call; with `held`, also all that is in flight."""
        names, now = Names(), self._clock()
        position = names.position
        ejected, tried, returned = _ejections(self._ejections, names, now)
        batch = Batch(
            self.origin,
            sent=[_sent(one, names, now) for one in self._sent],
            moved=[(number, position(address)) for number, address in self._moved],
            began=self._began,
            ended=self._ended,
            held=self._held(names, now) if held else None,
            ejected=ejected,
            tried=tried,
            returned=returned,
            token_sizes=self._fleet.signals.token_sizes.learned if held else {},
            is_last=is_last,
        )._replace(names=names.all())
        self._taken = _Taken(self._sent, self._moved, self._began, self._ended, self._ejections)
        self._is_awake = False
        self._blocks = 0
        self._sent, self._moved, self._began, self._ended = [], [], [], []
        self._ejections = []
        return batch

    def put_back(self) -> None:
        """Let the next batch also report what the last one had, because it was not written."""
        taken, self._taken = self._taken, None
        if taken is None:
            return
        self._sent = [*taken.sent, *self._sent]
        self._moved = [*taken.moved, *self._moved]
        self._began = [*taken.began, *self._began]
        self._ended = [*taken.ended, *self._ended]
        self._ejections = [*taken.ejections, *self._ejections]
        for events in (self._moved, self._began, self._ended, self._ejections):
            _limit(events)
        self._is_awake = any((self._sent, self._moved, self._began, self._ended, self._ejections))
        self._blocks = sum(one.blocks for one in self._sent)
        while self._blocks > MOST_BLOCKS or len(self._sent) > MOST_REQUESTS:
            self._drop_half()

    def _held(self, names: Names, now: float) -> list[Held]:
        return [_held(lease, names, now) for lease in self._fleet.ledger.leases() if lease.number]

    def _record(self, event: _EjectionEvent) -> None:
        self._happened()
        self._ejections.append(event)
        _limit(self._ejections)

    def _happened(self) -> None:
        if not self._is_awake:
            self._is_awake = True
            self._wake()

    def _drop_half(self) -> None:
        del self._sent[: (len(self._sent) + 1) // 2]
        self._blocks = sum(one.blocks for one in self._sent)


def _sent(one: _Unreported, names: Names, now: float) -> Sent:
    request = one.request
    return (
        one.number,
        names.position(one.model),
        names.position(one.address),
        names.position(request.adapter),
        -1.0 if request.tokens is None else request.tokens,
        request.to_compute,
        request.prefix,
        now - one.at,
        [packed(chain) for chain in request.chains],
        request.turn,
    )


def _held(lease: Lease, names: Names, now: float) -> Held:
    context, prefill = lease.context, lease.prefill
    return (
        lease.number,
        names.position(lease.model),
        names.position(lease.endpoint.address),
        -1.0 if context is None else context.tokens,
        0.0 if prefill is None else prefill.remaining,
        0.0 if context is None else now - context.since,
    )


def _ejections(
    events: Sequence[_EjectionEvent], names: Names, now: float
) -> tuple[list[tuple[int, float]], list[int], list[int]]:
    """Return the ejections that are not over, and recent trials and returns.

    A batch has no times of trials and returns: peers apply them as if they had just happened.
    """
    ejected: list[tuple[int, float]] = []
    tried: list[int] = []
    returned: list[int] = []
    for event in _last_of_each(events):
        age = now - event.at
        if event.kind == "ejected":
            if age < event.seconds:
                ejected.append((names.position(event.address), event.seconds - age))
        elif age <= SILENT_SECONDS:
            (tried if event.kind == "tried" else returned).append(names.position(event.address))
    return ejected, tried, returned


def _last_of_each(events: Sequence[_EjectionEvent]) -> list[_EjectionEvent]:
    """Return the last event of each address, in order."""
    last: dict[str, _EjectionEvent] = {}
    for event in events:
        before = last.pop(event.address, None)
        if event.kind == "tried" and before is not None and before.kind == "ejected":
            # Peers do not know the ejection yet. The trial makes it last as long again.
            event = before._replace(at=event.at)
        last[event.address] = event
    return list(last.values())


def _limit(events: list[Any]) -> None:
    """Drop the oldest events if there are too many."""
    if len(events) > MOST_REQUESTS:
        del events[: len(events) // 2]
