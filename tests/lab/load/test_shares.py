"""The shares of several processes, which together equal the work of one."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.lab.load.bodies import BodyOptions
from extproc.lab.load.shares import RequestOptions, plan, starts
from extproc.lab.load.target import Target
from extproc.lab.workloads.workload import Segment, Session, Workload, conversation

ASKING = RequestOptions(Target(False, "h", 80), BodyOptions("m", "chat"))


def session(name: str, start: float = 0.0) -> Session:
    return Session(conversation(name, (), [5, 5], [3, 3]), start)


def workload(
    sessions: int, concurrency: int | None = None, rate: float | None = None, warm_up: int = 0
) -> Workload:
    made = [session(f"s{number}", number / 10) for number in range(sessions)]
    return Workload("w", made, concurrency, rate, warm_up=warm_up)


def names(sessions: Sequence[Session]) -> list[str]:
    return [session.turns[0].prompt[0].name for session in sessions]


@given(st.integers(1, 40), st.none() | st.integers(1, 50), st.integers(1, 9), st.integers(0, 5))
def test_each_session_and_slot_belongs_to_one_process(
    sessions: int, concurrency: int | None, processes: int, warm_up: int
) -> None:
    warm_up = min(warm_up, sessions - 1)
    work = workload(sessions, concurrency, warm_up=warm_up)
    dealt = plan(work, 0, processes, ASKING)
    assert len(dealt.shares) <= processes
    wanted = [work.sessions[:warm_up], work.sessions[warm_up:]][0 if warm_up else 1 :]
    assert [len(share.phases) for share in dealt.shares] == [len(wanted)] * len(dealt.shares)
    for number, expected in enumerate(wanted):
        phases = [share.phases[number] for share in dealt.shares]
        found = [due.session for phase in phases for due in phase.sessions]
        assert sorted(names(found)) == sorted(names(expected))
        places = sum(phase.slots for phase in phases)
        assert places == min(concurrency or len(expected), len(expected))
        assert dealt.phases[number] == 2 * len(expected)


def test_shares_are_even_and_ordered() -> None:
    dealt = plan(workload(10, 5), 0, 2, ASKING)
    first, second = (share.phases[0] for share in dealt.shares)
    # Of five slots, the first process has the first, third and fifth.
    assert [due.start for due in first.sessions] == [0, 0.2, 0.4, 0.5, 0.7, 0.9]
    assert [due.start for due in second.sessions] == [0.1, 0.3, 0.6, 0.8]
    assert (first.slots, second.slots) == (3, 2)
    assert [share.streams for share in dealt.shares] == [3, 2]


def test_no_process_is_started_without_a_slot() -> None:
    assert len(plan(workload(10, 2), 0, 8, ASKING).shares) == 2
    assert len(plan(workload(3), 0, 8, ASKING).shares) == 3


def test_random_starts_are_poisson_for_any_number_of_processes() -> None:
    work = workload(4_000, rate=20.0)
    times = starts(work, seed=3)
    assert times == starts(work, seed=3) != starts(work, seed=4)
    assert times[0] == 0
    pauses = [later - earlier for earlier, later in pairwise(times)]
    assert fmean(pauses) == pytest.approx(1 / 20, rel=0.05)
    share_longer_than_mean = sum(pause > 1 / 20 for pause in pauses) / len(pauses)
    assert share_longer_than_mean == pytest.approx(0.368, abs=0.03)
    for processes in (1, 3):
        shares = plan(work, 3, processes, ASKING).shares
        assert sorted(due.start for share in shares for due in share.phases[0].sessions) == times


def test_given_starts_are_kept_without_a_rate() -> None:
    assert starts(workload(3), seed=0) == [0, 0.1, 0.2]
    assert starts(Workload("w", [], requests_per_second=1.0), seed=0) == []


def test_workload_without_sessions_has_a_plan() -> None:
    dealt = plan(Workload("w", []), 0, 4, ASKING)
    assert [phase.slots for phase in dealt.shares[0].phases] == [0]
    assert dealt.phases == [0]


def test_shares_do_not_contain_the_text_of_segments() -> None:
    """Only names and lengths are sent, so even large workloads are small."""
    shared = Segment("system", 100_000, "system")
    sessions = [Session(conversation(f"s{n}", [shared], [5], [3])) for n in range(4)]
    dealt = plan(Workload("w", sessions), 0, 2, ASKING)
    prompt = dealt.shares[0].phases[0].sessions[0].session.turns[0].prompt
    assert prompt[0] is shared
