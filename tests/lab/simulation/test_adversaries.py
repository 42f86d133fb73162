"""PrefixCache on workloads that are bad for rules that follow prefixes, compared with LeastLoad.

These are short versions of the runs in docs/prefix-caches.md.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any, NamedTuple

import numpy as np
import pytest

from extproc.lab.engine import profile
from extproc.lab.engine.profile import Profile
from extproc.lab.measures.run import Run
from extproc.lab.measures.serving import Summary, summarize
from extproc.lab.simulation.events import Join, Leave
from extproc.lab.simulation.scenario import Scenario
from extproc.lab.simulation.simulation import simulate
from extproc.lab.workloads import Options, named
from extproc.lab.workloads.drawn import Shape, sessions
from extproc.lab.workloads.workload import Workload
from tests.lab.simulation.builders import balancing


class Outcome(NamedTuple):
    run: Run
    summary: Summary

    @property
    def requests(self) -> list[int]:
        """Return the requests of each endpoint."""
        count: int = self.run.notes["endpoints"]
        return [int(n) for n in np.bincount(self.run.endpoint, minlength=count)]


Both = tuple[Outcome, Outcome]
"""Outcomes of PrefixCache and of LeastLoad."""


def both(workload: str, number: int, pace: float = 1.0, **fleet: Any) -> Both:
    asked = named(workload, Options(pace=pace, sessions=number))
    return outcomes(asked, profile.named(asked.profile), **fleet)


def outcomes(workload: Workload, engine: Profile, **fleet: Any) -> Both:
    def outcome(strategy: str) -> Outcome:
        run = simulate(replace(Scenario.of(workload, engine, balancing(strategy)), **fleet))
        return Outcome(run, summarize(run))

    return outcome("PrefixCache"), outcome("LeastLoad")


@pytest.fixture(scope="module")
def one_prefix() -> Both:
    return both("one-prefix", 600)


@pytest.fixture(scope="module")
def hot_prefix() -> Both:
    return both("hot-prefix", 800)


@pytest.fixture(scope="module")
def two_hundred() -> Both:
    return both("hot-prefix", 400, pace=10.0, replicas=200)


@pytest.fixture(scope="module")
def one_dies() -> Both:
    events = (Leave(15.0, 0), Join(25.0, 0))
    return both("heavy-tail", 120, pace=0.8, events=events)


class TestOnePrefix:
    def test_costs_nothing_compared_with_least_load(self, one_prefix: Both) -> None:
        ours, plain = one_prefix
        assert ours.summary.mean_ttft_ms <= 1.1 * plain.summary.mean_ttft_ms

    def test_has_no_growing_queue(self, one_prefix: Both) -> None:
        """Rules that always follow a prefix have such a queue; here only first requests wait."""
        ours, plain = one_prefix
        assert ours.summary.p90_ttft_ms <= 1.1 * plain.summary.p90_ttft_ms
        assert ours.summary.p99_ttft_ms <= 3 * plain.summary.p99_ttft_ms
        assert min(ours.requests) > 0


class TestDistinctPrompts:
    def test_go_to_the_endpoint_with_the_least_work(self) -> None:
        ours, plain = both("all-distinct", 300)
        assert ours.summary.mean_ttft_ms <= 0.9 * plain.summary.mean_ttft_ms
        assert ours.summary.p99_ttft_ms <= plain.summary.p99_ttft_ms


class TestHotPrefix:
    def test_leaves_the_caches_of_other_prefixes(self, hot_prefix: Both) -> None:
        ours, plain = hot_prefix
        assert (ours.summary.hit_rate or 0) >= (plain.summary.hit_rate or 1) + 0.1
        assert ours.summary.mean_ttft_ms <= 0.6 * plain.summary.mean_ttft_ms
        assert ours.summary.p99_ttft_ms <= plain.summary.p99_ttft_ms

    def test_costs_no_throughput(self, hot_prefix: Both) -> None:
        ours, plain = hot_prefix
        assert ours.summary.output_throughput >= 0.98 * plain.summary.output_throughput


class TestTwoHundredEndpoints:
    def test_requests_follow_their_prefix(self, two_hundred: Both) -> None:
        ours, plain = two_hundred
        assert (ours.summary.hit_rate or 0) >= (plain.summary.hit_rate or 1) + 0.2
        assert ours.summary.p99_ttft_ms <= 1.25 * plain.summary.p99_ttft_ms

    def test_a_hot_prefix_costs_little(self, two_hundred: Both) -> None:
        """Each of the 200 is scraped once a second, because of the limit for all together."""
        ours, plain = two_hundred
        assert ours.summary.mean_ttft_ms <= 0.9 * plain.summary.mean_ttft_ms
        assert ours.summary.output_throughput >= 0.95 * plain.summary.output_throughput


class TestFullBatches:
    """Long responses to popular system prompts, on engines that batch few requests.

    Their KV caches have room, so the metrics do not say why requests wait.
    """

    def test_are_avoided_while_other_engines_have_places(self) -> None:
        shape = Shape(
            prefixes=30,
            prefix_tokens=5_000,
            skew=1.0,
            chunks=1,
            turns=(1, 1),
            message_tokens=300,
            sigma=0.5,
            answer_tokens=700,
            think_seconds=0,
        )
        asked = sessions(shape, 500, Random(0), most_tokens=60_000)
        workload = Workload("long responses", asked, replicas=8, requests_per_second=17.0)
        engine = replace(profile.named("a100-llama-3.1-8b"), max_num_seqs=64)
        ours, plain = outcomes(workload, engine)
        assert ours.summary.mean_ttft_ms <= 0.3 * plain.summary.mean_ttft_ms
        assert ours.summary.p99_ttft_ms <= 0.6 * plain.summary.p99_ttft_ms
        assert ours.summary.output_throughput >= plain.summary.output_throughput


class TestHeavyTail:
    def test_long_messages_delay_others_less(self) -> None:
        ours, plain = both("heavy-tail", 120)
        assert ours.summary.mean_ttft_ms <= 0.6 * plain.summary.mean_ttft_ms
        assert ours.summary.p99_ttft_ms <= 0.7 * plain.summary.p99_ttft_ms


class TestSlowEndpoint:
    def test_gets_fewer_requests_without_longer_waits(self) -> None:
        ours, plain = both("heavy-tail", 120, pace=0.8, slow={0: 3.0})
        slow, *others = ours.requests
        assert slow <= 0.7 * np.mean(others)
        assert ours.summary.mean_ttft_ms <= 0.6 * plain.summary.mean_ttft_ms
        assert ours.summary.p99_ttft_ms <= plain.summary.p99_ttft_ms


class TestReturningEndpoint:
    def test_loses_only_its_own_responses(self, one_dies: Both) -> None:
        ours, _ = one_dies
        assert ours.run.notes["broken"] <= 10
        asked = ~np.isnan(ours.run.sent)
        assert np.count_nonzero(asked & ~ours.run.succeeded) == ours.run.notes["broken"]

    def test_gets_its_share_after_its_return(self, one_dies: Both) -> None:
        ours, plain = one_dies
        back = ours.run.endpoint[ours.run.sent > 25.0]
        share = np.count_nonzero(back == 0) / back.size
        assert 0.5 / 8 < share < 2 / 8
        assert ours.summary.mean_ttft_ms <= 0.6 * plain.summary.mean_ttft_ms
        assert ours.summary.p99_ttft_ms <= plain.summary.p99_ttft_ms


class TestGrowingFleet:
    EVENTS = tuple(Join(5.0 + n, 2 + n) for n in range(14))

    def test_new_endpoints_get_requests_but_not_too_many(self) -> None:
        ours, plain = both("heavy-tail", 180, replicas=16, events=self.EVENTS)
        late = ours.run.endpoint[ours.run.sent > 20.0]
        requests = np.bincount(late, minlength=16)
        assert requests.min() >= 0.4 * requests.mean()
        assert requests.max() <= 2.0 * requests.mean()
        assert ours.summary.mean_ttft_ms <= 0.7 * plain.summary.mean_ttft_ms
        assert ours.summary.p99_ttft_ms <= plain.summary.p99_ttft_ms
