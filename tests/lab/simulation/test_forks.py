"""Forks: sessions that start from a turn of another, such as sub-agents. They always end."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from extproc.lab.simulation.client import SINGLE_THREADED, ClientCosts
from extproc.lab.simulation.events import Event, Join, Leave
from extproc.lab.simulation.simulation import simulate
from extproc.lab.workloads.workload import Fork, Session
from tests.lab.simulation.builders import engine, scenario, turn, workload
from tests.lab.simulation.test_client import Scene

# In these examples the first token takes 0.5 s, and each other one 0.25 s.


def parent(*forks: Fork, turns: int = 2) -> Session:
    return Session([turn(f"p{n}", output=1) for n in range(turns)], forks=forks)


def child(name: str, turns: int = 1, think: float = 0.0) -> Session:
    return Session([turn(f"{name}{n}", output=1, think=think) for n in range(turns)])


class TestTimes:
    def test_a_fork_starts_with_the_response_to_its_turn(self) -> None:
        client = Scene(workload(parent(Fork(0, child("c"), is_awaited=False)))).run()
        assert client.sent.tolist() == [0.0, 0.5, 0.5]

    def test_a_fork_may_start_with_a_pause(self) -> None:
        asked = workload(parent(Fork(0, child("c", think=2.0), is_awaited=False)))
        assert Scene(asked).run().sent.tolist() == [0.0, 0.5, 2.5]

    def test_the_next_turn_waits_for_all_awaited_forks(self) -> None:
        asked = workload(parent(Fork(0, child("c", 3)), Fork(0, child("d", 2))))
        client = Scene(asked).run()
        assert client.sent[1] == client.last[4] == 2.0
        assert client.sent.tolist() == [0.0, 2.0, 0.5, 1.0, 1.5, 0.5, 1.0]

    def test_the_pause_of_the_next_turn_starts_when_forks_end(self) -> None:
        turns = [turn("p", output=1), turn("q", output=1, think=4.0)]
        asked = workload(Session(turns, forks=[Fork(0, child("c"))]))
        assert Scene(asked).run().sent.tolist() == [0.0, 5.0, 0.5]

    def test_a_fork_of_the_last_turn_runs_after_its_parent(self) -> None:
        client = Scene(workload(parent(Fork(1, child("c"))))).run()
        assert client.sent.tolist() == [0.0, 0.5, 1.0]

    def test_forks_have_forks(self) -> None:
        inner = child("c", 2)._replace(forks=[Fork(0, child("d"))])
        client = Scene(workload(parent(Fork(0, inner)))).run()
        assert client.sent.tolist() == [0.0, 2.0, 0.5, 1.5, 1.0]

    def test_forks_need_no_slot(self) -> None:
        forking = parent(Fork(0, child("c"), is_awaited=False))
        client = Scene(workload(forking, child("next"), concurrency=1)).run()
        assert client.sent.tolist() == [0.0, 0.5, 0.5, 1.0]


class TestFailures:
    def test_a_parent_continues_after_a_refused_fork(self) -> None:
        client = Scene(workload(parent(Fork(0, child("c", 2)))), refused={2}).run()
        assert client.sent[1] == 0.5
        assert np.isnan(client.sent[3])

    def test_forks_of_a_refused_turn_never_start(self) -> None:
        forks = Fork(0, child("c")._replace(forks=[Fork(0, child("d"))])), Fork(1, child("e"))
        client = Scene(workload(parent(*forks)), refused={0}).run()
        assert np.isnan(client.sent[1:]).all()

    def test_a_running_fork_outlives_a_refused_parent(self) -> None:
        asked = workload(parent(Fork(0, child("c", 3), is_awaited=False)), child("next"))
        client = Scene(asked, refused={1}).run()
        assert client.last.tolist()[2:5] == [1.0, 1.5, 2.0]


def sessions(depth: int = 2) -> st.SearchStrategy[Session]:
    """Return sessions with forks, also after turns that do not exist."""
    turns = st.lists(
        st.builds(
            turn,
            st.integers(0, 99).map(str),
            prompt=st.sampled_from([8, 40, 200]),  # an engine below refuses the longest
            output=st.integers(1, 5),
            think=st.sampled_from([0.0, 0.5]),
        ),
        min_size=1,
        max_size=3,
    )
    inner = sessions(depth - 1) if depth else st.nothing()
    forks = st.lists(st.builds(Fork, st.integers(0, 3), inner, st.booleans()), max_size=2)
    starts = st.sampled_from([0.0, 1.5])
    return st.builds(Session, turns, starts, forks if depth else st.just([]))


EVENTS: st.SearchStrategy[list[Event]] = st.lists(
    st.one_of(
        st.builds(Leave, st.floats(0, 20), st.integers(0, 1)),
        st.builds(Join, st.floats(0, 20), st.integers(0, 1)),
    ),
    max_size=4,
)


@settings(deadline=None, max_examples=40)
@given(
    st.lists(sessions(), min_size=1, max_size=4),
    st.sets(st.integers(0, 40)),
    st.none() | st.integers(1, 3),
    st.sampled_from([ClientCosts(), SINGLE_THREADED]),
)
def test_every_session_ends_if_any_requests_are_refused(
    asked: list[Session], refused: set[int], slots: int | None, costs: ClientCosts
) -> None:
    scene = Scene(workload(*asked, concurrency=slots), costs, refused)
    client = scene.run()
    assert client.done == len(workload(*asked).all_sessions)
    assert scene.under_way == 0
    assert (np.isnan(client.last) == np.isnan(client.first)).all()


@settings(deadline=None, max_examples=30)
@given(
    st.lists(sessions(), min_size=1, max_size=3),
    EVENTS,
    st.sampled_from(["LeastLoad", "PrefixCache"]),
)
def test_every_simulation_ends_although_engines_refuse_and_die(
    asked: list[Session], events: list[Event], strategy: str
) -> None:
    small = engine(kv_tokens=160, step_base_seconds=0.125)
    run = simulate(scenario(workload(*asked), small, strategy, replicas=2, events=events))
    assert len(run.sent) == workload(*asked).requests
    assert (np.isnan(run.first) | (run.first >= run.sent)).all()
