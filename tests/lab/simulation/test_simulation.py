"""A workload on a fleet: requests and times that can be calculated by hand."""

from __future__ import annotations

from dataclasses import fields, replace
from itertools import pairwise
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from extproc.core.fleet.ledger import Ledger
from extproc.lab.measures.run import Run
from extproc.lab.measures.serving import summarize
from extproc.lab.simulation import sidecars
from extproc.lab.simulation.client import IDEAL, ClientCosts
from extproc.lab.simulation.sidecars import Routing
from extproc.lab.simulation.simulation import Scenario, simulate
from extproc.lab.workloads import Options, named
from extproc.lab.workloads.workload import Segment, Session, Turn, Workload
from tests.extent import extent
from tests.lab.simulation.builders import (
    BLOCK,
    balancing,
    engine,
    fast,
    scenario,
    session,
    talk,
    turn,
    workload,
)


@pytest.fixture
def ledgers(monkeypatch: pytest.MonkeyPatch) -> list[Ledger]:
    """Return the ledgers of all sidecars."""
    made: list[Ledger] = []

    class Recorded(Ledger):
        def __init__(self) -> None:
            super().__init__()
            made.append(self)

    monkeypatch.setattr(sidecars, "Ledger", Recorded)
    return made


def assert_equal(first: Run, second: Run) -> None:
    for one in fields(Run):
        a, b = getattr(first, one.name), getattr(second, one.name)
        if isinstance(a, np.ndarray):
            np.testing.assert_array_equal(a, b, err_msg=one.name)
        else:
            assert a == b, one.name


class TestOneEngine:
    """The profile's formula, by hand."""

    PROFILE = engine(
        step_base_seconds=0.04,
        seconds_per_context_token=1e-4,
        admission_seconds=0.01,
        prefill_tokens_per_second=1_000.0,
    )

    def test_a_request_takes_the_time_of_its_steps(self) -> None:
        run = simulate(scenario(workload(session(turn("a", 100, 4))), self.PROFILE))
        assert run.first[0] - run.sent[0] == pytest.approx(0.04 + 100e-4 + 0.01 + 0.1)
        # Each step reads the context with the token of the previous one.
        assert run.gaps.tolist() == pytest.approx([0.04 + 1e-4 * n for n in (101, 102, 103)])
        assert run.seconds == run.last[0] == pytest.approx(run.first[0] + run.gaps.sum())

    def test_only_the_end_of_a_cached_prompt_is_computed(self) -> None:
        one = session(turn("a", 100, 1))
        run = simulate(scenario(workload(one, one, concurrency=1), self.PROFILE))
        # At most 99 tokens can be cached: six whole blocks.
        assert run.cached_tokens.tolist() == [0, 6 * BLOCK]
        assert run.first - run.sent == pytest.approx(
            [0.04 + 100e-4 + 0.01 + 0.1, 0.04 + 100e-4 + 0.01 + 0.004]
        )

    def test_the_next_turn_finds_the_last_prompt_and_response(self) -> None:
        run = simulate(scenario(workload(talk("t", [40, 30], [41, 10])), self.PROFILE))
        # The last of 81 tokens was never computed; 80 are five blocks.
        assert run.cached_tokens.tolist() == [0, 5 * BLOCK]

    def test_two_concurrent_requests_share_each_step(self) -> None:
        asked = workload(session(turn("a", 100, 2)), session(turn("b", 200, 2)))
        run = simulate(scenario(asked, self.PROFILE))
        first = 0.04 + 300e-4 + 2 * 0.01 + 0.3
        assert run.first.tolist() == pytest.approx([first, first])
        assert run.gaps.tolist() == pytest.approx([0.04 + 1e-4 * (101 + 201)] * 2)

    def test_a_client_with_costs_receives_later(self) -> None:
        costs = ClientCosts(per_chunk=0.001, per_request=0.02, turns_per_request=2)
        one = workload(session(turn("a", 100, 4)))
        ideal = simulate(scenario(one, self.PROFILE))
        run = simulate(scenario(one, self.PROFILE, client=costs))
        assert run.sent.tolist() == ideal.sent.tolist() == [0.0]
        assert run.first[0] == pytest.approx(ideal.first[0] + 0.02 + 0.001)
        assert run.gaps == pytest.approx(ideal.gaps)
        assert run.client_busy == pytest.approx((0.02 + 4 * 0.001) / run.seconds)
        assert ideal.client_busy == 0.0


class TestRun:
    def test_keeps_the_order_of_the_workload(self) -> None:
        sessions = [talk(f"{n}", [30 + n, 5], [3, 7]) for n in range(4)]
        run = simulate(scenario(workload(*sessions), replicas=2, strategy="RoundRobin"))
        asked = [one for each in sessions for one in each.turns]
        assert run.prompt_tokens.tolist() == [one.prompt_tokens for one in asked]
        assert run.output_tokens.tolist() == [3, 7] * 4
        # The first turns came first, and went to the endpoints in turn.
        assert run.endpoint[::2].tolist() == [0, 1, 0, 1]

    def test_names_workload_and_strategy(self) -> None:
        run = simulate(scenario(workload(session(turn("a"))), strategy="Random", replicas=3))
        assert (run.workload, run.strategy, run.notes["endpoints"]) == ("by hand", "Random", 3)

    def test_counts_preemptions(self) -> None:
        # 8 blocks for two requests that end with 5 blocks each.
        asked = workload(*(session(turn(n, 40, 40)) for n in "ab"))
        run = simulate(scenario(asked, engine(kv_tokens=8 * BLOCK)))
        assert run.notes["preemptions"] == 1
        assert run.succeeded.all()
        assert "preemptions" in simulate(scenario(asked)).notes

    def test_measures_sessions_from_first_request_to_last_token(self) -> None:
        thinker = session(turn("a", output=1), turn("b", output=1, think=10.0))
        run = simulate(scenario(workload(thinker, session(turn("c", output=1)))))
        # Two steps of 1.125 s, the first a little longer for two, and the pause.
        assert run.notes["mean_session_ms"] == pytest.approx(1000 * (12.375 + 1.25) / 2)

    def test_starts_with_warm_adapters(self) -> None:
        lora = engine(max_loras=2, lora_load_seconds=100.0, lora_activate_seconds=10.0)
        asked = workload(*(session(turn(n, adapter=n, output=1)) for n in "ab"))
        assert simulate(scenario(asked, lora)).seconds == 1.25

    def test_reports_progress_by_request(self) -> None:
        reports: list[int] = []
        asked = workload(session(turn("a"), turn("b")), session(turn("c")), warm_up=1)
        simulate(scenario(asked), reports.append)
        assert sum(reports) == 3
        assert all(reports)


class TestSidecars:
    def spread(self, sidecars: int, seed: int) -> list[int]:
        """Return the load spread of eight concurrent requests on eight engines."""
        asked = workload(*(session(turn(f"{n}", output=9)) for n in range(8)))
        run = simulate(scenario(asked, replicas=8, sidecars=sidecars, seed=seed))
        return sorted(np.bincount(run.endpoint, minlength=8).tolist())

    def test_a_single_sidecar_counts_all_requests(self) -> None:
        assert all(self.spread(1, seed) == [1] * 8 for seed in range(5))

    def test_several_sidecars_count_their_own_and_spread_worse(self) -> None:
        assert all(max(self.spread(4, seed)) > 1 for seed in range(5))

    def test_each_gets_requests(self, ledgers: list[Ledger]) -> None:
        asked: list[int] = []
        acquire = Ledger.acquire

        def counted(self: Ledger, *given: Any, ours: bool = True) -> Any:
            asked.append(ledgers.index(self))
            return acquire(self, *given, ours=ours)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Ledger, "acquire", counted)
            sessions = [session(turn(f"{n}")) for n in range(80)]
            simulate(scenario(workload(*sessions), replicas=2, sidecars=4))
        assert len(ledgers) == 4
        assert all(10 <= asked.count(number) <= 30 for number in range(4))

    def test_more_sidecars_spread_a_real_workload_worse(self) -> None:
        threads = named("kubeai-threads-300", Options(sessions=200, concurrency=40))

        def busiest(sidecars: int) -> float:
            found = simulate(scenario(threads, fast(), replicas=8, sidecars=sidecars))
            return in_flight(found, 8)

        assert busiest(1) < busiest(4)


def in_flight(run: Run, replicas: int) -> float:
    """Return the largest number of requests on any endpoint, averaged over all arrivals."""
    most = []
    for now in run.sent:
        here = run.endpoint[(run.sent <= now) & (run.last > now)]
        most.append(np.bincount(here, minlength=replicas).max())
    return float(np.mean(most))


class TestRefusal:
    """A request that can never fit into an engine's cache."""

    PROFILE = engine(kv_tokens=10 * BLOCK)

    def test_is_noted_with_its_reason_and_the_run_continues(self, ledgers: list[Ledger]) -> None:
        asked = workload(session(turn("a")), session(turn("b", 200)), session(turn("c")))
        run = simulate(scenario(asked, self.PROFILE))
        assert run.succeeded.tolist() == [True, False, True]
        assert run.notes["refused"] == (
            "prompt and output together have 202 tokens, but the whole cache holds 160"
        )
        assert (run.endpoint[1], run.cached_tokens[1]) == (-1, -1)
        assert [dict(one.loads) for one in ledgers] == [{}]

    def test_ends_its_session_and_frees_its_slot(self) -> None:
        asked = workload(
            session(turn("a"), turn("b", 200), turn("c")), session(turn("d")), concurrency=1
        )
        run = simulate(scenario(asked, self.PROFILE))
        assert run.succeeded.tolist() == [True, False, False, True]
        assert np.isnan(run.sent).tolist() == [False, False, True, False]
        assert run.sent[3] == run.sent[1] == run.last[0]

    def test_is_counted_as_failed(self) -> None:
        asked = workload(session(turn("a"), turn("b", 200), turn("c")))
        summary = summarize(simulate(scenario(asked, self.PROFILE)))
        assert (summary.completed, summary.failed) == (1, 2)
        assert (summary.total_input_tokens, summary.total_output_tokens) == (20, 2)

    @pytest.mark.filterwarnings("error")
    def test_can_be_the_result_of_all_requests(self) -> None:
        asked = workload(*(session(turn(f"{n}", 200)) for n in range(3)), warm_up=1)
        run = simulate(scenario(asked, self.PROFILE))
        assert not run.succeeded.any()
        assert (run.seconds, run.gaps.size) == (0.0, 0)
        assert summarize(run).failed == 2

    def test_can_have_other_reasons(self) -> None:
        asked = workload(session(turn("a", adapter="sql")))
        run = simulate(scenario(asked, self.PROFILE))
        assert run.notes["refused"] == "the request names adapter sql, but LoRA is off"

    def test_note_is_absent_without_refusals(self) -> None:
        assert "refused" not in simulate(scenario(workload(session(turn("a"))))).notes


class TestWarmUp:
    def test_is_not_in_the_figures(self) -> None:
        before = [session(turn(f"w{n}", 500, 50)) for n in range(5)]
        asked = workload(*before, session(turn("a", 100, 10)), warm_up=5)
        run = simulate(scenario(asked))
        alone = simulate(scenario(workload(session(turn("a", 100, 10)))))
        assert_equal(run, alone)

    def test_caches_stay_warm(self) -> None:
        one = session(turn("a", 100, 2))
        run = simulate(scenario(workload(one, one, warm_up=1)))
        assert run.cached_tokens.tolist() == [96]

    def test_its_preemptions_do_not_count(self) -> None:
        tight = [session(turn(n, 40, 40)) for n in "ab"]
        asked = workload(*tight, session(turn("c")), warm_up=2)
        assert simulate(scenario(asked, engine(kv_tokens=8 * BLOCK))).notes["preemptions"] == 0

    def test_the_run_begins_with_the_first_request_after_it(self) -> None:
        before = session(turn("w", output=50), start=7.0)
        asked = workload(before, session(turn("a"), start=3.0), warm_up=1)
        run = simulate(scenario(asked))
        assert (run.wanted[0], run.sent[0]) == (3.0, 3.0)
        assert run.seconds == run.last[0] == 3.0 + 2.125

    def test_its_refusals_do_not_count(self) -> None:
        asked = workload(session(turn("w", 500)), session(turn("a")), warm_up=1)
        run = simulate(scenario(asked, engine(kv_tokens=10 * BLOCK)))
        assert "refused" not in run.notes
        assert run.succeeded.tolist() == [True]

    def test_the_clients_work_in_it_does_not_count(self) -> None:
        costs = ClientCosts(per_request=0.5)
        asked = workload(*(session(turn(f"{n}")) for n in range(9)), warm_up=8)
        run = simulate(scenario(asked, client=costs))
        assert run.client_busy == pytest.approx(0.5 / run.seconds)


def ceiling(asked: Workload) -> list[int]:
    """Return the already computed tokens of each prompt, in whole blocks, if nothing is evicted.

    The last token of a prompt is always computed, because the response starts from it.
    """
    seen: set[tuple[str, tuple[tuple[str, int], ...]]] = set()
    found = []
    for one in (one for each in asked.sessions for one in each.turns):
        row = [(part.name, n) for part in (*one.prompt, one.output) for n in range(part.tokens)]
        ends = range(BLOCK, len(row), BLOCK)  # the last token of a response is never computed
        here = [(one.adapter, tuple(row[:end])) for end in ends]
        limit = (one.prompt_tokens - 1) // BLOCK
        hits = next((n for n, key in enumerate(here[:limit]) if key not in seen), limit)
        found.append(hits * BLOCK)
        seen.update(here)
    return found


class TestCache:
    ENDLESS = fast(kv_tokens=100_000_000)

    @pytest.mark.parametrize("name", ["kubeai-threads-300", "kubeai-chat-800", "lora-4"])
    def test_one_unlimited_replica_reaches_the_ceiling(self, name: str) -> None:
        asked = named(name, Options(sessions=12, concurrency=1))
        profile = replace(self.ENDLESS, max_loras=4)
        run = simulate(scenario(replace(asked, requests_per_second=None), profile))
        assert run.cached_tokens.tolist() == ceiling(asked)[asked.before.requests :]

    def test_more_replicas_without_affinity_find_less(self) -> None:
        asked = named("kubeai-threads-300", Options(sessions=30, concurrency=5))
        hits = [
            summarize(simulate(scenario(asked, self.ENDLESS, how, replicas=count))).hit_rate or 0
            for how, count in (("Random", 8), ("PrefixHash", 8), ("Random", 1))
        ]
        assert all(a < b for a, b in pairwise(hits))


def test_the_seed_determines_the_run() -> None:
    asked = named("lora-4", Options(sessions=20))
    fleet = scenario(asked, fast(max_loras=2, kv_tokens=3_000), "LoraQueue", replicas=4, sidecars=3)
    run = simulate(fleet)
    assert_equal(run, simulate(fleet))
    other = simulate(replace(fleet, seed=1))
    assert other.endpoint.tolist() != run.endpoint.tolist()


def test_the_seed_determines_the_clients_pauses() -> None:
    asked = workload(*(session(turn(f"{n}")) for n in range(5)), requests_per_second=1.0)
    sent = [simulate(scenario(asked, seed=seed)).sent.tolist() for seed in (0, 1)]
    assert sent[0] != sent[1]


names = st.sampled_from(["a", "b", "c"])
turns = st.builds(
    Turn,
    st.lists(st.builds(Segment, names, st.integers(1, 40)), min_size=1, max_size=3).map(tuple),
    st.builds(Segment, names, st.integers(1, 30)),
    st.sampled_from(["", "", "x", "y"]),
    st.sampled_from([0.0, 0.1, 2.0]),
)
sessions_ = st.builds(
    Session, st.lists(turns, min_size=1, max_size=4), st.sampled_from([0.0, 0.5, 3.0]), st.just(())
)
workloads = st.builds(
    workload,
    *[sessions_] * 4,
    concurrency=st.none() | st.integers(1, 3),
    requests_per_second=st.none() | st.floats(0.5, 50.0),
    api=st.sampled_from(["chat", "completions"]),
    warm_up=st.integers(0, 3),
)
profiles = st.builds(
    fast,
    kv_tokens=st.sampled_from([6 * BLOCK, 12 * BLOCK, 10_000]),
    max_num_seqs=st.sampled_from([1, 2, 16]),
    max_num_batched_tokens=st.sampled_from([16, 64]),
    max_loras=st.sampled_from([0, 1, 2]),
)
strategies = st.sampled_from(["Random", "LeastLoad", "PrefixHash", "LowLatency", "LoraKVCache"])
clients = st.sampled_from([IDEAL, ClientCosts(1e-3, 0.02, 3)])


def conserved(fleet: Scenario, run: Run, ledgers: list[Ledger]) -> None:
    """Check what is true of every run."""
    asked = [one for each in fleet.workload.measured.sessions for one in each.turns]
    good = run.succeeded
    assert run.prompt_tokens.tolist() == [one.prompt_tokens for one in asked]
    assert run.output_tokens.tolist() == [one.output.tokens for one in asked]

    # Nothing is left on the fleet.
    assert len(ledgers) == fleet.sidecars
    assert all(not one.loads for one in ledgers)

    # A session is answered completely, or up to a refused request.
    assert ("refused" in run.notes) == (not good.all())
    place = 0
    for each in fleet.workload.measured.sessions:
        answers = good[place : place + len(each.turns)].tolist()
        assert answers == sorted(answers, reverse=True)
        place += len(each.turns)
    fits = fleet.profile.kv_blocks * BLOCK
    for one, answered in zip(asked, good, strict=True):
        if answered:
            assert one.prompt_tokens + one.output.tokens <= fits
            assert not one.adapter or fleet.profile.max_loras

    # A request with a response has an endpoint and its tokens.
    assert ((run.endpoint >= 0) == good).all()
    assert ((run.cached_tokens >= 0) == good).all()
    assert (run.endpoint < fleet.replicas).all()
    assert (run.cached_tokens[good] < run.prompt_tokens[good]).all()
    assert (run.cached_tokens[good] % BLOCK == 0).all()
    assert run.gaps.size == int(run.output_tokens[good].sum()) - np.count_nonzero(good)
    assert (run.gaps >= 0).all()
    assert run.gaps.sum() == pytest.approx((run.last - run.first)[good].sum())

    # Times are in order, and within the run.
    assert (run.wanted <= run.sent + 1e-9)[~np.isnan(run.sent)].all()
    assert (run.sent < run.first)[good].all()
    assert (run.first <= run.last)[good].all()
    assert (run.last[good] <= run.seconds + 1e-9).all()
    assert 0 <= run.client_busy <= 1 + 1e-9
    shortest = fleet.profile.step_base_seconds
    assert ((run.first - run.sent)[good] >= shortest).all()


@settings(max_examples=extent(8, 60))
@given(workloads, profiles, strategies, clients, st.integers(1, 3), st.integers(1, 3))
def test_invariants_of_any_run(
    asked: Workload,
    profile: Any,
    strategy: str,
    client: ClientCosts,
    replicas: int,
    count: int,
) -> None:
    made: list[Ledger] = []

    class Recorded(Ledger):
        def __init__(self) -> None:
            super().__init__()
            made.append(self)

    fleet = scenario(asked, profile, strategy, replicas=replicas, sidecars=count, client=client)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sidecars, "Ledger", Recorded)
        conserved(fleet, simulate(fleet), made)


def test_invariants_of_a_large_run(ledgers: list[Ledger]) -> None:
    rng = Random(5)
    sessions = [
        talk(f"{n}", [rng.randint(20, 300) for _ in range(4)], [rng.randint(1, 60)] * 4)
        for n in range(60)
    ]
    asked = workload(*sessions, concurrency=30, warm_up=10)
    tight = fast(kv_tokens=2_000)
    fleet = scenario(asked, tight, "PrefixHash", replicas=3, sidecars=2)
    run = simulate(fleet)
    conserved(fleet, run, ledgers)
    assert run.notes["preemptions"] > 0


def test_the_fleet_uses_the_documents_addresses() -> None:
    given = [f"192.0.2.{n}:8000" for n in range(1, 4)]
    routing = Routing(balancing("RoundRobin"), addresses=given)
    asked = workload(*(session(turn(f"{n}")) for n in range(6)))
    run = simulate(scenario(asked, routing=routing, replicas=3))
    assert sorted(run.endpoint.tolist()) == [0, 0, 1, 1, 2, 2]
