"""The simulation compared with the published tables: fitted rows, held-out rows, and the client.

The engine and the client are fitted to the 12 rows of KubeAI's page (kubeai-chat), so agreement
there shows consistency. The other benchmark (kubeai-threads) is held out.
"""

from __future__ import annotations

import pytest

from extproc.lab.engine import profile
from extproc.lab.measures.published import row_of
from extproc.lab.measures.serving import Summary, summarize
from extproc.lab.simulation.client import IDEAL, SINGLE_THREADED
from extproc.lab.simulation.sidecars import Routing
from extproc.lab.simulation.simulation import Scenario, simulate
from extproc.lab.workloads import named
from tests.lab.simulation.builders import balancing


def simulated(name: str, strategy: str, *, ideal: bool = False) -> Summary:
    asked = named(name)
    client = SINGLE_THREADED if asked.single_threaded_client and not ideal else IDEAL
    engine = profile.named(asked.profile)
    routing = Routing(balancing(strategy), asked.adapters)
    return summarize(simulate(Scenario(asked, engine, routing, asked.replicas, client=client)))


def over_published(summary: Summary, metric: str) -> float:
    row = row_of(summary.workload, summary.strategy)
    assert row is not None
    ours, theirs = summary.metric(metric), row.value(metric)
    assert ours is not None
    assert theirs is not None
    return ours / theirs


@pytest.mark.parametrize(
    ("load", "strategy"),
    [
        (800, "Random"),
        pytest.param(1_600, "LeastLoad", marks=pytest.mark.full),
        pytest.param(8_000, "PrefixHash", marks=pytest.mark.full),
    ],
)
def test_the_fitted_rows_match_the_publication(load: int, strategy: str) -> None:
    summary = simulated(f"kubeai-chat-{load}", strategy)
    assert (summary.completed, summary.failed) == (8_000, 0)
    assert (summary.total_input_tokens, summary.total_output_tokens) == (6_656_338, 608_447)
    assert over_published(summary, "mean_itl_ms") == pytest.approx(1, abs=0.1)
    assert over_published(summary, "total_token_throughput") == pytest.approx(1, abs=0.1)
    assert 1 / 1.5 < over_published(summary, "mean_ttft_ms") < 1.5


def test_the_published_client_limits_prefix_hash() -> None:
    # A client without limits would show a third more throughput. The full engines would then show
    # half the token rate and queues of many seconds.
    summary = simulated("kubeai-chat-8000", "PrefixHash", ideal=True)
    assert over_published(summary, "total_token_throughput") > 1.2
    assert over_published(summary, "mean_itl_ms") > 2
    assert over_published(summary, "mean_ttft_ms") > 50


@pytest.mark.full
def test_a_held_out_cell_matches_the_publication() -> None:
    summary = simulated("kubeai-threads-600", "PrefixHash")
    assert (summary.completed, summary.failed) == (59_031, 0)
    assert over_published(summary, "total_token_throughput") == pytest.approx(1, abs=0.2)
