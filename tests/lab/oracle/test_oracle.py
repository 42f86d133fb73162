"""The oracle's predictions and choices."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from extproc.lab import oracle
from extproc.lab.engine.profile import Profile
from extproc.lab.engine.replica import Replica, SimRequest
from extproc.lab.measures.serving import summarize
from extproc.lab.oracle.memory import Memory
from extproc.lab.oracle.outlook import outlook
from extproc.lab.oracle.rules import RULES, Cost
from extproc.lab.oracle.truth import Truth
from extproc.lab.simulation.block_ids import BlockIds
from extproc.lab.simulation.engines import Engines
from extproc.lab.simulation.scenario import Scenario
from extproc.lab.simulation.simulation import simulate
from extproc.lab.simulation.timeline import Timeline
from extproc.lab.workloads import Options, named
from extproc.lab.workloads.workload import Segment, Turn, Workload
from tests.lab.simulation.builders import BLOCK, balancing, engine, fast, session, turn, workload

SHARED = Segment("system", 800, "system")


def request(number: int, prompt: int, output: int = 4, first_block: int = 0) -> SimRequest:
    """Return a request whose blocks follow `first_block`."""
    blocks = range(first_block, first_block + (prompt + output) // BLOCK)
    return SimRequest(number, prompt, output, blocks)


def run(replica: Replica, number: int, now: float = 0.0) -> float:
    """Run an engine until this request has its first token, and return the time."""
    while True:
        now += replica.begin_step() or 0.0
        if number in replica.finish_step().first:
            return now


def predicted(replica: Replica, new: SimRequest, start: float = 0.0) -> float:
    return outlook(Memory(replica), new, start, 0.0).wait


def asked(*names: str) -> Workload:
    return workload(*[session(turn(name, opening=(SHARED,))) for name in names])


class TestPrediction:
    @given(
        prompt=st.integers(1, 40_000),
        budget=st.integers(256, 20_000),
        warm=st.integers(0, 20_000),
        chunked=st.booleans(),
    )
    @settings(max_examples=50, deadline=None)
    def test_is_exact_on_an_idle_engine(
        self, prompt: int, budget: int, warm: int, chunked: bool
    ) -> None:
        replica = Replica(fast(max_num_batched_tokens=budget, chunked_prefill=chunked))
        if warm:
            replica.submit(request(1, warm, output=1))
            run(replica, 1)
        new = request(2, prompt)
        expected = predicted(replica, new)
        replica.submit(new)
        assert run(replica, 2) == pytest.approx(expected)

    @given(
        prompts=st.lists(st.integers(1, 4_000), max_size=12),
        outputs=st.integers(1, 60),
        places=st.integers(2, 8),
        steps=st.integers(0, 20),
        chunks=st.sampled_from([0, 512, -1]),
    )
    @settings(max_examples=60, deadline=None)
    def test_is_within_two_steps_behind_a_queue(
        self, prompts: list[int], outputs: int, places: int, steps: int, chunks: int
    ) -> None:
        profile: Profile = fast(
            max_num_seqs=places,
            max_num_batched_tokens=2_048,
            chunked_prefill=chunks >= 0,
            max_prompt_tokens_with_decoding=max(0, chunks),
        )
        replica = Replica(profile)
        for number, prompt in enumerate(prompts):
            replica.submit(request(number, prompt, outputs + number, 10_000 * number))
        start = 0.0
        for _ in range(steps):
            start = replica.begin_step() or 0.0
            if start:
                replica.finish_step()
        start = replica.begin_step() or 0.0
        new = request(99, 500, first_block=10_000_000)
        expected = predicted(replica, new, start)
        replica.submit(new)
        first: float | None = None
        if start and 99 in replica.finish_step().first:
            first = start
        found = first or run(replica, 99, start)
        longest = profile.step_base_seconds + 4_000 / profile.prefill_tokens_per_second + 0.1
        assert found == pytest.approx(expected, abs=2 * longest)

    def test_counts_blocks_that_the_queue_will_compute(self) -> None:
        memory = Memory(Replica(fast()))
        before, new = request(1, 1_600), request(2, 1_600)
        assert memory.cached_tokens(new) == 0
        memory.sent(before, 0)
        memory.replica.submit(before)
        assert memory.cached_tokens(new) == 1_584
        assert [one.uncached for one in memory.waiting] == [1_600]


class Pair:
    """Two engines, of which the second has the shared beginning of the next request."""

    def __init__(self, *, knows_steps: bool = True) -> None:
        work = asked("a", "b")
        self.timeline = timeline = Timeline()
        ids = BlockIds(BLOCK)
        first, second = (one.turns[0] for one in work.sessions)
        self.engines = Engines(timeline, fast(), 2)
        self.truth = Truth(timeline, self.engines, work, ids, knows_steps=knows_steps)
        self.engines.submit(1, self._request(0, first, ids))
        timeline.run(lambda: False)
        self.truth.ask(second, self._request(1, second, ids))

    def begin(self, request: SimRequest) -> None:
        """Let the first engine begin the step that computes a request."""
        self.engines.submit(0, request)
        self.timeline.run(lambda: self.engines.replicas[0].planned is not None)

    def costs(self, rule: str) -> list[Cost]:
        return RULES[rule]([self.truth.outlook(0), self.truth.outlook(1)])

    def _request(self, number: int, of: Turn, ids: BlockIds) -> SimRequest:
        return SimRequest(number, of.prompt_tokens, of.output.tokens, ids.of(of))


class TestChoice:
    @pytest.mark.parametrize("rule", oracle.RULE_NAMES)
    def test_prefers_the_engine_that_has_the_blocks(self, rule: str) -> None:
        without, with_blocks = Pair().costs(rule)
        assert with_blocks < without

    def test_counts_the_queue(self) -> None:
        pair = Pair()
        for number in range(10, 14):
            pair.engines.submit(1, request(number, 9_000, first_block=10_000 * number))
        free, busy = pair.costs("soonest")
        assert free < busy

    def test_assumes_half_of_the_present_step_if_its_end_is_unknown(self) -> None:
        waits, left = [], 0.0
        for knows_steps in (True, False):
            pair = Pair(knows_steps=knows_steps)
            pair.begin(request(10, 9_000, first_block=100_000))
            left = pair.engines.step_ends[0] - pair.timeline.now
            waits.append(pair.truth.outlook(0).wait)
        known, unknown = waits
        assert left > 0
        assert known - unknown == pytest.approx(left / 2)

    def test_follows_a_replaced_engine(self) -> None:
        pair = Pair()
        pair.engines.replace(1)
        assert pair.truth.cached(1) == 0
        without, new = pair.costs("soonest")
        assert without == new


class TestRules:
    def test_are_those_of_the_names(self) -> None:
        assert tuple(RULES) == oracle.RULE_NAMES
        assert oracle.rule_of("Oracle") in RULES
        assert oracle.rule_of("Oracle:product") == "product"
        assert oracle.rule_of("LMetric") == ""

    def test_may_be_those_of_an_oracle_that_does_not_know_steps(self) -> None:
        assert oracle.rule_of("Oracle:product:unsynchronized") == "product"
        assert not oracle.knows_steps("Oracle:product:unsynchronized")
        assert oracle.knows_steps("Oracle:product")

    @pytest.mark.parametrize("name", oracle.names())
    def test_serve_a_workload(self, name: str) -> None:
        work = asked(*"abcdef")
        scenario = Scenario.of(work, engine(), balancing("LeastLoad"), published_rule=name)
        assert summarize(simulate(scenario)).completed == 6

    @pytest.mark.parametrize("seed", [0, 1])
    def test_are_not_worse_than_a_published_rule(self, seed: int) -> None:
        work = named("hot-prefix", Options(seed=seed, sessions=300))

        def mean(rule: str) -> float:
            usual = balancing("LeastLoad")
            asked = Scenario.of(work, fast(), usual, seed=seed, published_rule=rule)
            return summarize(simulate(asked)).mean_ttft_ms

        assert min(map(mean, ("Oracle:sparing", "Oracle:thrifty"))) <= mean("LMetric")

    def test_serve_many_engines(self) -> None:
        work = asked(*(str(number) for number in range(60)))
        usual = Scenario.of(work, engine(), balancing("LeastLoad"), published_rule="Oracle")
        many = simulate(replace(usual, replicas=40))
        assert summarize(many).completed == 60
