"""Who does what: sessions, places and the times of starts, shared out among processes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from random import Random
from typing import NamedTuple

from extproc.lab.load.bodies import BodyOptions
from extproc.lab.load.target import Target
from extproc.lab.workloads.workload import Session, Workload


class ScheduledSession(NamedTuple):
    """A session and when it is to begin, in seconds from the beginning of its phase."""

    start: float
    session: Session


@dataclass(frozen=True)
class Phase:
    """What a process does between a beginning and an end that all processes have in common."""

    sessions: Sequence[ScheduledSession]
    places: int
    """Sessions at a time."""

    is_closed: bool = False
    """Whether a session is due when there is a place for it, and not at a time of its own."""


@dataclass(frozen=True)
class RequestOptions:
    """How everything is asked, whoever does it."""

    target: Target
    style: BodyOptions
    timeout: float = 600.0
    """Seconds without a byte after which a request has failed."""

    keep_alive: bool = True


@dataclass(frozen=True)
class Share:
    """What one process has to do, and how. Only the last phase is the measurement."""

    phases: Sequence[Phase]
    options: RequestOptions

    @property
    def streams(self) -> int:
        """At a time, at most."""
        return max(phase.places for phase in self.phases)


@dataclass(frozen=True)
class Plan:
    """What the parent has to know of a run."""

    workload: str
    phases: Sequence[int]
    """Requests of each."""

    shares: Sequence[Share] = field(repr=False)


def plan(workload: Workload, seed: int, processes: int, options: RequestOptions) -> Plan:
    """Deals sessions out by the places they would take in turn: shares are alike at all times."""
    phases = list(_phases(workload))
    workers = max(1, min(processes, max(_places(phase) for phase in phases)))
    dealt = [list(_dealt(phase, seed, workers)) for phase in phases]
    shares = [Share(phases_of_one, options) for phases_of_one in zip(*dealt, strict=True)]
    return Plan(workload.name, [phase.requests for phase in phases], shares)


def _phases(workload: Workload) -> Iterator[Workload]:
    """The warm-up, if there is one, and the measurement."""
    if workload.warm_up:
        yield workload.before
    yield workload.measured


def _places(workload: Workload) -> int:
    sessions = len(workload.sessions)
    return sessions if workload.concurrency is None else min(workload.concurrency, sessions)


def _dealt(workload: Workload, seed: int, workers: int) -> Iterator[Phase]:
    due = [
        ScheduledSession(start, session)
        for start, session in zip(starts(workload, seed), workload.sessions, strict=True)
    ]
    places = _places(workload)
    for one in range(workers):
        of_places = range(one, places, workers)
        mine = [each for number, each in enumerate(due) if number % places in of_places]
        yield Phase(mine, len(of_places), workload.is_closed)


def starts(workload: Workload, seed: int) -> list[float]:
    """When each session begins.

    Random pauses are drawn here for all processes, so starts are the same however many
    processes there are.
    """
    pace = workload.requests_per_second
    if pace is None or not workload.sessions:
        return [session.start for session in workload.sessions]
    rng = Random(seed)
    pauses = (rng.expovariate(pace) for _ in workload.sessions[1:])
    return list(accumulate(pauses, initial=0.0))
