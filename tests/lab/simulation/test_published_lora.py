"""Claims of the published LoRA tables that hold in the simulation: order and rough size of effects.

The engine was fitted to these tables by hand, so this shows consistency. Four sidecars represent
the published picker. It did not count its own requests between two scrapes, so a burst spread over
the pods. A single sidecar knows at once where it has sent an adapter, and sends all its requests
there.

These are the first 400 requests of one seed; docs/benchmarks.md has all of them, and the
differences.
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import fmean

import pytest

from extproc.lab.engine import profile
from extproc.lab.measures.serving import Summary, summarize
from extproc.lab.simulation.pool import simulate_all
from extproc.lab.simulation.simulation import Scenario
from extproc.lab.workloads import Options, named
from tests.lab.simulation.builders import balancing

pytestmark = pytest.mark.full

REQUESTS = 400
SEEDS = (0,)

BASELINE = "LeastRequest"
FULL_CHAIN = "LowLatency"

ROWS = {
    "lora-10": (BASELINE, FULL_CHAIN, "LoraQueue"),
    "lora-4": (BASELINE, FULL_CHAIN, "QueueKVCache", "LoraQueue"),
}

Mean = Callable[[str, str, str], float]
"""The mean of a metric over the seeds, by workload and strategy."""


def scenario(workload: str, strategy: str, seed: int) -> Scenario:
    asked = named(workload, Options(seed=seed, sessions=REQUESTS))
    engine = profile.named(asked.profile)
    return Scenario.of(asked, engine, balancing(strategy), seed=seed)


@pytest.fixture(scope="session")
def mean() -> Mean:
    keys = [(workload, strategy) for workload, rows in ROWS.items() for strategy in rows]
    runs = simulate_all([scenario(*key, seed) for key in keys for seed in SEEDS])
    found: dict[tuple[str, str], list[Summary]] = {}
    for run in runs:
        found.setdefault((run.workload, run.strategy), []).append(summarize(run))

    def of(workload: str, strategy: str, metric: str) -> float:
        values = [one.metric(metric) for one in found[workload, strategy]]
        return fmean(value for value in values if value is not None)

    return of


def over_baseline(mean: Mean, workload: str, strategy: str, metric: str) -> float:
    return mean(workload, strategy, metric) / mean(workload, BASELINE, metric)


def test_ten_adapters_the_full_chain_wins(mean: Mean) -> None:
    assert over_baseline(mean, "lora-10", FULL_CHAIN, "mean_ttft_ms") < 0.6
    assert over_baseline(mean, "lora-10", FULL_CHAIN, "p95_ttft_ms") < 0.9
    assert over_baseline(mean, "lora-10", FULL_CHAIN, "requests_per_minute") > 1.06


def test_ten_adapters_lora_then_queue_halves_the_ttft(mean: Mean) -> None:
    assert 0.25 < over_baseline(mean, "lora-10", "LoraQueue", "mean_ttft_ms") < 0.6


def test_four_adapters_queue_then_cache_wins(mean: Mean) -> None:
    others = (mean("lora-4", strategy, "mean_ttft_ms") for strategy in ROWS["lora-4"])
    assert mean("lora-4", "QueueKVCache", "mean_ttft_ms") == min(others)
    assert over_baseline(mean, "lora-4", "QueueKVCache", "mean_ttft_ms") < 0.4
    assert 1.08 < over_baseline(mean, "lora-4", "QueueKVCache", "requests_per_minute") < 1.25


@pytest.mark.parametrize("strategy", [FULL_CHAIN, "LoraQueue"])
def test_four_adapters_affinity_first_is_worse_than_none(mean: Mean, strategy: str) -> None:
    without = mean("lora-4", "QueueKVCache", "mean_ttft_ms")
    assert mean("lora-4", strategy, "mean_ttft_ms") > 2 * without
    assert over_baseline(mean, "lora-4", strategy, "requests_per_minute") < 1.05


def test_busy_connections_gain_as_much_as_each_request(mean: Mean) -> None:
    assert over_baseline(mean, "lora-10", "LoraQueue", "mean_e2el_ms") < 0.8
    assert over_baseline(mean, "lora-10", "LoraQueue", "requests_per_minute") > 1.2
