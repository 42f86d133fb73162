"""Engines that join, die and are slow: effects on sidecars and requests."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from extproc.core.fleet.ledger import Ledger
from extproc.core.fleet.signals import Signals
from extproc.lab.measures.run import Run
from extproc.lab.measures.serving import summarize
from extproc.lab.simulation import sidecars
from extproc.lab.simulation.client import ClientCosts
from extproc.lab.simulation.engines import slowed
from extproc.lab.simulation.events import Event, Join, Leave, absent
from extproc.lab.simulation.scenario import Scenario
from extproc.lab.simulation.simulation import simulate
from extproc.lab.workloads.workload import Session, Workload
from tests.lab.simulation.builders import (
    BLOCK,
    balancing,
    engine,
    scenario,
    session,
    talk,
    turn,
    workload,
)


def arriving(count: int, every: float = 1.0, output: int = 2) -> Workload:
    """Return requests that arrive one after the other."""
    sessions = [session(turn(f"{n}", output=output), start=n * every) for n in range(count)]
    return workload(*sessions)


def fleet(asked: Workload, strategy: str = "RoundRobin", **other: Any) -> Scenario:
    return scenario(asked, strategy=strategy, **{"replicas": 2, **other})


class TestMembership:
    def test_a_later_engine_gets_no_requests_before(self) -> None:
        run = simulate(fleet(arriving(8), events=[Join(3.5, 1)]))
        assert run.endpoint.tolist()[:4] == [0, 0, 0, 0]
        assert sorted(run.endpoint.tolist()[4:]) == [0, 0, 1, 1]

    def test_an_engine_that_left_gets_no_requests_after(self) -> None:
        run = simulate(fleet(arriving(8), events=[Leave(3.5, 1)]))
        assert 1 in run.endpoint.tolist()[:4]
        assert run.endpoint.tolist()[4:] == [0, 0, 0, 0]

    def test_an_engine_that_returns_gets_its_share_again(self) -> None:
        run = simulate(fleet(arriving(12), events=[Leave(3.5, 1), Join(7.5, 1)]))
        assert run.endpoint.tolist()[4:8] == [0, 0, 0, 0]
        assert 1 in run.endpoint.tolist()[8:]

    def test_every_sidecar_learns_of_events(self) -> None:
        asked = arriving(40, 0.25)
        run = simulate(fleet(asked, "LeastLoad", sidecars=4, events=[Leave(5.0, 1)]))
        assert set(run.endpoint.tolist()[21:]) == {0}

    def test_events_happen_in_the_measured_part(self) -> None:
        before = [session(turn(f"w{n}"), start=float(n)) for n in range(10)]
        measured = arriving(4, every=4.0)
        asked = replace(measured, sessions=[*before, *measured.sessions], warm_up=10)
        run = simulate(fleet(asked, events=[Leave(6.5, 1)]))
        assert set(run.endpoint.tolist()[:2]) == {0, 1}
        assert run.endpoint.tolist()[2:] == [0, 0]

    def test_without_engines_requests_are_refused(self) -> None:
        run = simulate(fleet(arriving(3), replicas=1, events=[Leave(1.5, 0)]))
        assert run.succeeded.tolist()[-1] is False
        assert "No endpoint" in run.notes["refused"]

    def test_engines_that_first_join_are_absent_at_the_start(self) -> None:
        stays: list[Event] = [Leave(5.0, 0), Join(9.0, 0)]
        comes: list[Event] = [Leave(2.0, 2), Join(1.0, 2), Join(3.0, 3)]
        assert absent([*stays, *comes]) == {2, 3}
        assert absent([]) == frozenset()


class TestDeath:
    """A step takes more than a second, so requests of the last second have no first token yet."""

    def lost(self, at: float, output: int = 4) -> Run:
        """Return the request on the engine that dies, one of two."""
        asked = workload(session(turn("a", output=output)), session(turn("b", output=output)))
        return simulate(fleet(asked, events=[Leave(at, 0)]))

    def test_requests_without_a_first_token_go_to_another_engine(self) -> None:
        run = self.lost(0.5)
        assert (run.notes["retried"], run.notes["broken"]) == (1, 0)
        assert run.succeeded.all()
        assert run.endpoint.tolist() == [1, 1]
        assert run.sent.tolist() == [0, 0]
        # The other engine's step ends at 1.125 s, and the next one admits it.
        assert run.first[0] == 1.125 + 1.125

    def test_responses_with_a_first_token_break(self) -> None:
        run = self.lost(1.5)
        assert (run.notes["retried"], run.notes["broken"]) == (0, 1)
        assert run.succeeded.tolist() == [False, True]
        assert np.isnan(run.first).tolist() == [True, False]
        assert summarize(run).failed == 1

    def test_a_request_does_not_survive_a_second_death(self) -> None:
        asked = workload(session(turn("a")))
        deaths = [Leave(0.3, 0), Leave(0.6, 1), Leave(0.6, 2)]
        run = simulate(fleet(asked, replicas=3, events=deaths))
        assert (run.notes["retried"], run.notes["broken"]) == (1, 1)
        assert not run.succeeded.any()

    def test_a_broken_response_ends_its_session_and_frees_its_slot(self) -> None:
        thread = Session(talk("t", [20, 20], [4, 4]).turns)
        asked = workload(thread, session(turn("b"), start=0.0), concurrency=1)
        run = simulate(fleet(asked, events=[Leave(1.5, 0)]))
        assert run.succeeded.tolist() == [False, False, True]
        assert run.sent[2] == 1.5

    def test_a_client_that_reads_at_that_moment_has_no_response(self) -> None:
        asked = workload(session(turn("a", output=4)), session(turn("b", output=4)))
        slow = ClientCosts(per_chunk=0.2)
        run = simulate(fleet(asked, client=slow, events=[Leave(1.126, 0)]))
        assert np.isnan(run.last[0])
        assert np.isnan(run.first[0])

    def test_preemptions_of_the_dead_engine_count(self) -> None:
        asked = workload(*(session(turn(n, 40, 40)) for n in "ab"))
        tight = engine(kv_tokens=8 * BLOCK)
        whole = scenario(asked, tight, replicas=2, events=[Join(0.5, 1), Leave(30.0, 0)])
        assert simulate(whole).notes["preemptions"] == 1

    def test_the_cache_is_empty_afterwards(self) -> None:
        again = [session(turn("a", 100, 1), start=start) for start in (0.0, 5.0, 10.0)]
        asked = workload(*again)
        usual = simulate(scenario(asked))
        died = simulate(scenario(asked, events=[Leave(6.9, 0), Join(7.0, 0)]))
        assert usual.cached_tokens.tolist() == [0, 96, 96]
        assert died.cached_tokens.tolist() == [0, 96, 0]

    def test_runs_without_events_have_no_notes_on_them(self) -> None:
        notes = simulate(fleet(arriving(2))).notes
        assert not {"retried", "broken"} & notes.keys()


class TestSidecars:
    @pytest.fixture
    def known(self, monkeypatch: pytest.MonkeyPatch) -> list[Signals]:
        made: list[Signals] = []

        class Recorded(Signals):
            def __init__(self, *given: object) -> None:
                super().__init__(*given)  # type: ignore[arg-type]
                made.append(self)

        monkeypatch.setattr(sidecars, "Signals", Recorded)
        return made

    def test_forget_the_cache_of_a_dead_engine(self, known: list[Signals]) -> None:
        asked = workload(session(turn("a", 200), start=1.0), session(turn("b"), start=5.0))
        simulate(scenario(asked, strategy="PrefixCache"))
        simulate(scenario(asked, strategy="PrefixCache", events=[Leave(3.0, 0), Join(4.0, 0)]))
        assert [len(signals.prefixes) for signals in known] == [3, 0]

    def test_scrape_a_new_engine_but_not_one_that_left(self, known: list[Signals]) -> None:
        asked = arriving(20)
        simulate(fleet(asked, "LeastQueue", events=[Join(10.0, 1)]))
        first, second = sidecars.Routing(balancing("LeastQueue")).endpoints(2)
        assert known[0].latest(second) is not None
        simulate(fleet(asked, "LeastQueue", events=[Leave(5.0, 0)]))
        assert known[1].latest(first) is None
        assert known[1].latest(second) is not None

    def test_scrape_an_engine_that_returns_at_once_as_often_as_before(
        self, known: list[Signals], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        read: list[str] = []
        reported = Signals.record_scrape

        def recorded(self: Signals, address: str, report: object, inflight: int) -> None:
            read.append(address)
            reported(self, address, report, inflight)  # type: ignore[arg-type]

        monkeypatch.setattr(Signals, "record_scrape", recorded)
        asked = arriving(60)
        simulate(fleet(asked, "LeastQueue"))
        usual = len(read)
        read.clear()
        flapping = [event for n in range(20) for event in (Leave(n, 0), Join(n + 0.01, 0))]
        simulate(fleet(asked, "LeastQueue", events=flapping))
        assert len(read) < 1.3 * usual

    def test_release_each_lease_with_its_request(self, monkeypatch: pytest.MonkeyPatch) -> None:
        ledgers: list[Ledger] = []

        class Recorded(Ledger):
            def __init__(self) -> None:
                super().__init__()
                ledgers.append(self)

        monkeypatch.setattr(sidecars, "Ledger", Recorded)
        dies = [Leave(3.5, 0), Join(6.5, 0), Leave(9.5, 1)]
        simulate(fleet(arriving(40, 0.5), "PrefixCache", sidecars=2, events=dies))
        assert [dict(ledger.loads) for ledger in ledgers] == [{}, {}]


class TestSlowEngines:
    def test_take_so_many_times_as_long(self) -> None:
        asked = workload(session(turn("a")), session(turn("b")))
        run = simulate(fleet(asked, slow={1: 3.0}))
        assert run.last.tolist() == [2.125, 3 * 2.125]

    def test_are_slow_in_all_work(self) -> None:
        usual = engine(seconds_per_context_token=0.5, prefill_tokens_per_second=300.0)
        slow = slowed(usual, 3.0)
        assert (slow.step_base_seconds, slow.admission_seconds) == (3.0, 0.375)
        assert (slow.seconds_per_context_token, slow.prefill_tokens_per_second) == (1.5, 100.0)
        assert slowed(usual, 1.0) is usual

    def test_stay_slow_after_their_return(self) -> None:
        asked = workload(session(turn("a"), start=5.0))
        events = [Leave(1.0, 0), Join(2.0, 0)]
        run = simulate(fleet(asked, replicas=1, slow={0: 2.0}, events=events))
        assert run.last[0] - run.sent[0] == 2 * 2.125
