"""Divides the sessions of a workload, their start times and their slots among processes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, islice
from random import Random
from typing import NamedTuple

from extproc.lab.load.bodies import BodyOptions
from extproc.lab.load.target import Target
from extproc.lab.workloads.arrivals import pauses
from extproc.lab.workloads.workload import Session, Workload


class ScheduledSession(NamedTuple):
    """A session and its start, in seconds from the beginning of its phase."""

    start: float
    session: Session


@dataclass(frozen=True)
class Phase:
    """The part of one process in a phase, which begins and ends at the same time everywhere."""

    sessions: Sequence[ScheduledSession]
    slots: int
    """Most sessions at a time."""

    is_closed: bool = False
    """True for a closed loop, in which a session starts when a slot is free."""


@dataclass(frozen=True)
class RequestOptions:
    """The options of all requests."""

    target: Target
    style: BodyOptions
    timeout: float = 600.0
    """Seconds without a received byte after which a request fails."""

    keep_alive: bool = True


@dataclass(frozen=True)
class Share:
    """The work of one process. Only the last phase is measured."""

    phases: Sequence[Phase]
    options: RequestOptions

    @property
    def streams(self) -> int:
        """Most concurrent streams."""
        return max(phase.slots for phase in self.phases)


@dataclass(frozen=True)
class Plan:
    """The plan of a run for the parent."""

    workload: str
    phases: Sequence[int]
    """Number of requests in each phase."""

    shares: Sequence[Share] = field(repr=False)


def plan(workload: Workload, seed: int, processes: int, options: RequestOptions) -> Plan:
    """Divide the sessions by slots in turn, so that all processes always have similar load."""
    phases = list(_phases(workload))
    workers = max(1, min(processes, max(_slots(phase) for phase in phases)))
    dealt = [list(_dealt(phase, seed, workers)) for phase in phases]
    shares = [Share(phases_of_one, options) for phases_of_one in zip(*dealt, strict=True)]
    return Plan(workload.name, [phase.requests for phase in phases], shares)


def _phases(workload: Workload) -> Iterator[Workload]:
    """Yield the warm-up, if there is one, and the measurement."""
    if workload.warm_up:
        yield workload.before
    yield workload.measured


def _slots(workload: Workload) -> int:
    sessions = len(workload.sessions)
    return sessions if workload.concurrency is None else min(workload.concurrency, sessions)


def _dealt(workload: Workload, seed: int, workers: int) -> Iterator[Phase]:
    due = [
        ScheduledSession(start, session)
        for start, session in zip(starts(workload, seed), workload.sessions, strict=True)
    ]
    slots = _slots(workload)
    for one in range(workers):
        of_slots = range(one, slots, workers)
        mine = [each for number, each in enumerate(due) if number % slots in of_slots]
        yield Phase(mine, len(of_slots), workload.is_closed)


def starts(workload: Workload, seed: int) -> list[float]:
    """Return the start of each session.

    Random pauses are drawn here, so the starts do not depend on the number of processes.
    """
    if workload.requests_per_second is None or not workload.sessions:
        return [session.start for session in workload.sessions]
    drawn = islice(pauses(workload, Random(seed)), len(workload.sessions) - 1)
    return list(accumulate(drawn, initial=0.0))
